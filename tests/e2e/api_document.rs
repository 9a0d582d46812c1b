//! `schemathesis` against `/openapi.json`: requests that the document allows and forbids, at every
//! route of the real server.
//!
//! It fails where an answer is a failure of the server, hangs, or is not as the document says in
//! status, headers, content type or form; and where the server takes what the document forbids. Its
//! seed is fixed, and the context is short, so that no answer takes long.

use crate::python_clients;
use crate::server_process::ServerProcess;
use libtest_mimic::Trial;
use std::env;
use std::path::Path;

pub(crate) fn trials() -> Vec<Trial> {
    trials![schemathesis_finds_nothing]
}

/// What pip installs.
const PACKAGES: [&str; 1] = ["schemathesis==4.32.5"];

fn schemathesis_finds_nothing() {
    let server = ServerProcess::start(&["--max-model-len", "64"]);
    let folder = python_clients::installed("schemathesis", &PACKAGES);
    let hooks = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python");
    let mut schemathesis = python_clients::python_with(&folder);
    schemathesis.env("PYTHONPATH", env::join_paths([&folder, &hooks]).unwrap());
    schemathesis.env("SCHEMATHESIS_HOOKS", "schemathesis_hooks");
    schemathesis.args(["-c", "from schemathesis.cli import schemathesis; schemathesis()", "run"]);
    schemathesis.arg(format!("http://{}/openapi.json", server.address));
    schemathesis.args(["--seed", "1", "--max-examples", "5", "--phases", "coverage,fuzzing"]);
    schemathesis.args(["--generation-database", "none", "--no-color", "--request-timeout", "20"]);
    // What fits together is more than a schema can say: a prompt and its context, two fields.
    schemathesis.args(["--exclude-checks", "positive_data_acceptance"]);
    python_clients::run(schemathesis.current_dir(env!("CARGO_TARGET_TMPDIR")));
    server.wait_until_idle();
    server.complete(&serde_json::json!({"prompt": "Hi", "max_tokens": 2}));
}
