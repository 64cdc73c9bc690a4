# The server and the worker, with every store and every model's library. Agents are mounted or copied into /app.
FROM python:3.13.9-slim-trixie AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY counterfoil ./counterfoil
RUN python -m venv /opt/counterfoil \
    && /opt/counterfoil/bin/pip install --no-cache-dir ".[cli,http,postgres,otel,anthropic,google,openai]"

FROM python:3.13.9-slim-trixie
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /app counterfoil \
    && install --directory --owner counterfoil --group counterfoil /app /data
COPY --from=build /opt/counterfoil /opt/counterfoil
# Settings of `serve` and `work`; docs/cli.md has them all. A store in /data lasts where a volume is mounted there.
ENV PATH=/opt/counterfoil/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    COUNTERFOIL_STORE=sqlite:////data/counterfoil.db \
    COUNTERFOIL_SERVE_HOST=0.0.0.0 \
    COUNTERFOIL_SERVE_LOG=json \
    COUNTERFOIL_WORK_LISTEN=127.0.0.1:8000 \
    COUNTERFOIL_WORK_LOG=json
WORKDIR /app
VOLUME /data
EXPOSE 8000
USER 10001:10001
# Alive, not ready: a store that is away for a minute is no reason to kill what is being driven.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=3)"]
ENTRYPOINT ["counterfoil"]
CMD ["serve"]
