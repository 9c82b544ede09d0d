//! Runs the future of a command.

use std::pin::Pin;

use tokio::runtime::Runtime;

/// Like `Runtime::block_on`. The future is boxed: otherwise the compiler copies its whole code into each variant of the
/// runtime's loop, which makes the binary larger and the build slower.
pub(crate) fn block_on<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    let future: Pin<Box<dyn Future<Output = T> + '_>> = Box::pin(future);
    runtime.block_on(future)
}
