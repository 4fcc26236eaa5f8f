# The build stage has pip and setuptools; the image that runs has neither.
# BASE may be any image with Python 3.11 or later: docker build --build-arg BASE=python:3.13-slim .
ARG BASE=python:3.12-slim

FROM ${BASE} AS builder
WORKDIR /build
RUN python3 -m venv --without-pip /opt/oncehook
COPY requirements.lock ./
RUN python3 -m pip --python /opt/oncehook/bin/python install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY app ./app
RUN python3 -m pip --python /opt/oncehook/bin/python install --no-cache-dir --no-deps --no-build-isolation . \
    && python3 -m pip --python /opt/oncehook/bin/python uninstall --yes setuptools

FROM ${BASE}
RUN groupadd --gid 10001 oncehook \
    && useradd --uid 10001 --gid oncehook --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin oncehook
COPY --from=builder /opt/oncehook /opt/oncehook
WORKDIR /app
COPY alembic.ini ./
COPY alembic ./alembic
# Nothing is written at run time, so the root file system may be read-only.
ENV PATH=/opt/oncehook/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
# Without a proxy handler: a proxy named in the environment must not be asked about this container.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:8000/livez', timeout=2)"]
ENTRYPOINT ["oncehook"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]
