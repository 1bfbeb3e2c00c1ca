"""The retry protocol over ports: deliver, park, fire, lane, progress. Knows neither Faust nor Kafka nor RocksDB."""
