"""What a worker owns: intake, placement, and feeding its partitions."""
