# quantmedic as a container: docker build -t quantmedic . && docker run --rm -v "$PWD:/work" quantmedic demo
FROM python:3.12-slim AS build
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.12-slim
# Extras such as images or litert: docker build --build-arg EXTRAS=[images,litert] …
ARG EXTRAS=
COPY --from=build /wheels /wheels
# What is installed is the wheel of this very source; its name is known only once it is built.
# hadolint ignore=DL3013
RUN wheel=$(echo /wheels/*.whl) \
    && pip install --no-cache-dir "${wheel}${EXTRAS}" \
    && rm -rf /wheels \
    && useradd --create-home --uid 1000 quantmedic
# Compiled loops are kept where any user may write: with --user, files belong to whoever runs the container.
ENV XDG_CACHE_HOME=/tmp/cache
# By number: only then can a cluster see that it is not root.
USER 1000
WORKDIR /work
ENTRYPOINT ["quantmedic"]
CMD ["--help"]
