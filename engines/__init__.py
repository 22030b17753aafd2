"""What is built and how it is run: the bundle format, backends, KV caches. Backends are imported only when used."""
