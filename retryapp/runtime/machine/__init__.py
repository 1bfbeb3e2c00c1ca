"""What a worker takes from its machine: time, a folder, a port, memory."""
