"""Tables on RocksDB."""
