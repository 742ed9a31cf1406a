# bed-job alone: no shell, no packages, not root. It writes nothing to its file system, so
# that it can be run with --read-only.
#
#   docker build --build-arg VERSION=v0.1.0 -t bed-job .
#   docker run --read-only -v ./bed-job.yaml:/etc/bed/bed-job.yaml:ro bed-job
FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
COPY examples/go.mod examples/go.sum examples/
RUN go mod download && go -C examples mod download
COPY . .
ARG TARGETOS TARGETARCH VERSION=
# Without VERSION `bed-job version` says (devel).
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags "-s -w -X github.com/bedsql/bed/cmd/bed-job/internal/cli.stamp=$VERSION" -o /out/bed-job ./cmd/bed-job && \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -C examples -trimpath -o /out/shop ./shop

# The example application of compose.yaml: docker build --target shop .
FROM gcr.io/distroless/static-debian12:nonroot AS shop
COPY --from=build /out/shop /shop
USER 65532:65532
ENTRYPOINT ["/shop"]

FROM gcr.io/distroless/static-debian12:nonroot AS bed-job
COPY --from=build /out/bed-job /bed-job
USER 65532:65532
ENV BED_JOB_CONFIG=/etc/bed/bed-job.yaml
EXPOSE 8390
STOPSIGNAL SIGTERM
ENTRYPOINT ["/bed-job"]
CMD ["run"]
