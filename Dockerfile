# The image of deskcomm: one static binary, the certificates of public authorities and
# nothing else. docker compose up -d builds it; by hand, also for another architecture:
#   docker build --platform linux/arm64 --build-arg VERSION=$(git describe --tags --always) -t deskcomm .

# Runs on the builder's own architecture and compiles for the target's: no emulation.
FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# No defaults for the first two: they would win over what the builder knows.
ARG TARGETOS TARGETARCH VERSION=dev
# The flags are those of make build.
RUN --mount=type=cache,target=/go/cache \
    GOCACHE=/go/cache CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o /out/deskcomm .
# A name for the user, which audit rows of commands show, and an empty folder.
RUN mkdir /out/empty \
    && echo 'deskcomm:x:65532:65532:deskcomm:/data:/' >/out/passwd \
    && echo 'deskcomm:x:65532:' >/out/group

FROM scratch
ARG VERSION=dev
LABEL org.opencontainers.image.title="deskcomm" \
      org.opencontainers.image.description="The event platform of a WhatsApp CRM: one binary, one Postgres" \
      org.opencontainers.image.source="https://github.com/deskcomm/deskcomm" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="$VERSION"
COPY --from=build /out/passwd /out/group /etc/
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
# A new volume mounted here takes over the owner of the folder in the image.
COPY --from=build --chown=65532:65532 /out/empty /data
COPY --from=build --chown=65532:65532 /out/empty /secrets
COPY --from=build /out/deskcomm /deskcomm
# PATH lets one type: docker compose exec deskcomm deskcomm dlq list
ENV PATH=/ \
    DESKCOMM_ADDR=0.0.0.0:8080 \
    DESKCOMM_DATA_DIR=/data
USER 65532:65532
WORKDIR /data
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s --retries=3 CMD ["/deskcomm", "healthcheck"]
ENTRYPOINT ["/deskcomm"]
CMD ["serve"]
