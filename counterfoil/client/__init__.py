"""A client of the HTTP API: `Client`, and `AsyncClient` for asyncio. They need httpx2, the extra ``client``."""
