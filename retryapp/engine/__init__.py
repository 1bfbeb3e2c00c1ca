"""The retry protocol over ports: deliver, schedule, lane, progress. Knows neither Faust nor Kafka nor RocksDB."""
