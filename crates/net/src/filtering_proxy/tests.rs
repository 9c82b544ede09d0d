//! Tests of the proxy on real loopback sockets.
