"""The retry protocol on Faust, aiokafka and RocksDB."""
