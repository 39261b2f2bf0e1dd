"""RocksDB tables with a changelog: store, transactional writer, restore, standbys."""
