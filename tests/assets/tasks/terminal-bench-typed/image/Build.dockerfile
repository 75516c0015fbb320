FROM debian:bookworm-slim
RUN mkdir /work
