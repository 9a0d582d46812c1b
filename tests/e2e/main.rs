//! The binary itself on a real model, as users meet it: processes, sockets, signals, clients.
//!
//! The model is the one that the README's first command serves, fetched by the binary into the
//! user's own cache. Servers listen on free ports of the loopback interface.
//!
//! Starting a server costs about as much processor time as a short answer, so checks share one
//! server per set of flags ([`shared_server`]). That needs a place to stop them once all checks
//! are done, which is why these tests run under `libtest-mimic` instead of the built-in harness;
//! names, filters and `--list` work as usual. Checks run one after the other: a server takes all
//! cores, and two at once would measure each other.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

/// Makes trials of functions that panic when their name does not hold.
macro_rules! trials {
    ($($claim:ident),+ $(,)?) => {
        vec![$(libtest_mimic::Trial::test(
            concat!(module_path!(), "::", stringify!($claim)),
            || {
                $claim();
                Ok(())
            },
        )),+]
    };
}

mod adapters;
mod answers;
mod api_document;
mod binary;
mod checkpoint_folders;
mod concurrency;
mod disconnects;
mod exactness;
mod forks;
mod http;
mod life_cycle;
mod limits;
mod load_generators;
mod memory;
mod model_files;
mod overload;
mod patience;
mod prefix_cache;
mod pressure;
mod prompts;
mod python_clients;
mod refusals;
mod residency;
mod server_process;
mod shared_server;
mod sharing;
mod sliding_windows;
mod soak;
mod streams;
mod tiers;

use libtest_mimic::Arguments;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials = [
        model_files::trials(),
        checkpoint_folders::trials(),
        life_cycle::trials(),
        answers::trials(),
        streams::trials(),
        limits::trials(),
        refusals::trials(),
        exactness::trials(),
        prefix_cache::trials(),
        sharing::trials(),
        forks::trials(),
        sliding_windows::trials(),
        adapters::trials(),
        tiers::trials(),
        memory::trials(),
        residency::trials(),
        pressure::trials(),
        concurrency::trials(),
        soak::trials(),
        disconnects::trials(),
        overload::trials(),
        python_clients::trials(),
        api_document::trials(),
        load_generators::trials(),
    ];
    let conclusion = libtest_mimic::run(&arguments, trials.into_iter().flatten().collect());
    shared_server::stop_all();
    conclusion.exit_code()
}
