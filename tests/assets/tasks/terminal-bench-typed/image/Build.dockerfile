FROM debian:bookworm-slim
RUN mkdir /desk
