//! Servers that several checks use one after the other, one for each set of flags.

use crate::server_process::ServerProcess;
use std::sync::{Arc, Mutex, PoisonError};

/// A server that starts when a check first needs it and runs until [`stop_all`].
pub(crate) struct SharedServer {
    flags: &'static [&'static str],
    process: Mutex<Option<Arc<ServerProcess>>>,
}

/// What the README's first command starts.
pub(crate) static DEFAULT: SharedServer = SharedServer::new(&[]);
/// Computes every prompt in full, in small chunks, on one thread: the judge of the others.
pub(crate) static PLAIN: SharedServer =
    SharedServer::new(&["--no-prefix-caching", "--threads", "1", "--max-num-batched-tokens", "64"]);
/// A pool of [`TINY_POOL_TOKENS`] tokens, which one sequence can fill.
pub(crate) static TINY_POOL: SharedServer = SharedServer::new(&[
    "--num-blocks",
    "24",
    "--max-model-len",
    "384",
    "--max-num-batched-tokens",
    "64",
]);
/// Stores KV as bytes in a pool that a few answers fill.
pub(crate) static INT8_POOL: SharedServer = SharedServer::new(INT8_POOL_FLAGS);
/// The judge of [`INT8_POOL`].
pub(crate) static INT8_PLAIN: SharedServer = SharedServer::new(&[
    "--kv-cache-dtype",
    "int8",
    "--no-prefix-caching",
    "--threads",
    "1",
    "--max-num-batched-tokens",
    "64",
]);
/// Runs one sequence, lets two requests wait, and computes prompts in many steps.
pub(crate) static NARROW: SharedServer = SharedServer::new(NARROW_FLAGS);
/// Serves those with a key.
pub(crate) static KEYED: SharedServer = SharedServer::new(&["--api-key", API_KEY]);

/// Serves with a chat template that shows by example how a tool is called.
pub(crate) static FEW_SHOT: SharedServer = SharedServer::new(&[
    "--chat-template",
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/few_shot_tools.jinja"),
]);

/// Tokens in the pool of [`TINY_POOL`], its longest sequence too.
pub(crate) const TINY_POOL_TOKENS: u32 = 384;
/// The key of [`KEYED`].
pub(crate) const API_KEY: &str = "open-sesame";
/// Flags of [`INT8_POOL`].
pub(crate) const INT8_POOL_FLAGS: &[&str] = &[
    "--kv-cache-dtype",
    "int8",
    "--num-blocks",
    "32",
    "--max-model-len",
    "384",
    "--max-num-batched-tokens",
    "96",
];
/// Flags of [`NARROW`].
pub(crate) const NARROW_FLAGS: &[&str] = &[
    "--max-num-seqs",
    "1",
    "--max-queue-len",
    "2",
    "--max-num-batched-tokens",
    "32",
    "--max-model-len",
    "4096",
];

impl SharedServer {
    const fn new(flags: &'static [&'static str]) -> Self {
        Self { flags, process: Mutex::new(None) }
    }

    /// Returns the running server.
    pub(crate) fn get(&self) -> Arc<ServerProcess> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(process.get_or_insert_with(|| Arc::new(ServerProcess::start(self.flags))))
    }
}

/// Stops all servers that were started.
pub(crate) fn stop_all() {
    let all = [&DEFAULT, &PLAIN, &TINY_POOL, &INT8_POOL, &INT8_PLAIN, &NARROW, &KEYED, &FEW_SHOT];
    for server in all {
        server.process.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
