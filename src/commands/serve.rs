//! `mini-infer serve`: parse → validate → bind → load → serve → shut down.
//!
//! The listener is bound first, so that a taken port is known at once and health checks get an
//! answer while the model loads on a thread of its own.

use crate::access;
use crate::assemble::{self, ServeOptions, StartedModel, model_sources, open_model, plan_memory};
use crate::cli::{AdapterArgs, EngineArgs, HttpArgs, ModelArgs, ServeArgs, TierArgs};
use crate::config::EngineSettings;
use crate::download_progress::DownloadProgress;
use crate::error::CommandError;
use crate::kv_tier::TierSettings;
use crate::logging;
use crate::machine::Machine;
use crate::output;
use crate::output_format::OutputParsers;
use mini_infer_hub::HubOptions;
use mini_infer_kernels::Isa;
use mini_infer_server::{ResponseStoreLimits, Server, ServerConfig, ServerHandle, StopSignals};
use std::num::NonZeroUsize;
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

/// Threads that serve HTTP: one may be tokenizing while another streams.
const NUM_HTTP_THREADS: usize = 2;
/// As good as no timeout, and small enough to be added to any time.
const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Exit code of a process that a second Ctrl-C ended, as shells report it.
const INTERRUPTED: i32 = 130;

/// Serves until it is asked to stop.
///
/// # Errors
/// When flags do not fit together, the address is taken, or the model cannot be loaded.
pub(crate) fn run(args: ServeArgs) -> Result<(), CommandError> {
    let ServeArgs { model, adapters, engine, kv, tier, http } = args;
    logging::start(http.log_level);
    let settings = EngineSettings::new(&engine, &kv)?;
    let isa = Isa::from_env().map_err(CommandError::Isa)?;
    let hub = model_sources()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(NUM_HTTP_THREADS)
        .enable_all()
        .build()
        .map_err(CommandError::system("start the HTTP threads"))?;
    let loading = Loading { model, adapters, settings, isa, hub, engine, tier };
    let result = runtime.block_on(serve(http, loading));
    // Loading may still run on its thread after an early Ctrl-C; nothing waits for it.
    runtime.shutdown_background();
    result
}

async fn serve(http: HttpArgs, loading: Loading) -> Result<(), CommandError> {
    let config = ServerConfig {
        shutdown_timeout: Duration::from_secs(http.shutdown_timeout),
        access: access::config(&http)?,
        tls: access::tls(&http)?,
        max_connections: http.max_connections as usize,
        request_timeout: http.request_timeout.0,
        max_requests_per_client: http.max_requests_per_client,
        response_store: ResponseStoreLimits {
            // More than this machine can address is as good as all of it.
            max_bytes: usize::try_from(http.response_store.0).unwrap_or(usize::MAX),
            ..ResponseStoreLimits::default()
        },
        client_timeout: http.client_timeout.0.unwrap_or(NEVER),
        seed: http.seed,
        ..ServerConfig::default()
    };
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let address = (http.host.as_str(), http.port);
    let listen = || format!("listen on {}:{} (--host, --port)", http.host, http.port);
    let mut server = Server::bind(address, config).await.map_err(CommandError::system(listen()))?;
    if loading.tier.log_kv {
        server = server.with_kv_log(|line| output::line(line));
    }
    if http.access_log {
        let started = server.with_access_log(|line| output::line(line));
        server = started.map_err(CommandError::system("start the access log"))?;
    }
    if let Some(endpoint) = &http.otlp_endpoint {
        let started = server.with_traces(endpoint);
        server = started.map_err(CommandError::system("start sending traces"))?;
    }
    let address = server.local_addr().map_err(CommandError::system(listen()))?;
    let mut signals = StopSignals::listen().map_err(CommandError::system("listen to signals"))?;
    let handle = server.handle();
    let url = format!("{scheme}://{address}");
    let (loaded, mut failure) = oneshot::channel();
    thread::Builder::new()
        .name("loader".to_owned())
        .spawn(move || {
            if let Err(error) = loading.run(&handle, url) {
                // Without a receiver the server is shutting down anyway.
                let _ = loaded.send(error);
            }
        })
        .map_err(CommandError::system("start the loading thread"))?;
    let (failed, failure_seen) = oneshot::channel();
    let stop = async move {
        tokio::select! {
            () = signals.next() => {}
            // Resolves with an error, and so disables itself, once loading has succeeded.
            Ok(error) = &mut failure => {
                let _ = failed.send(error);
                return;
            }
        }
        tokio::spawn(async move {
            signals.next().await;
            std::process::exit(INTERRUPTED);
        });
    };
    server.run(stop).await;
    match failure_seen.await {
        Ok(error) => Err(error),
        Err(_) => Ok(()),
    }
}

/// What the loading thread needs.
struct Loading {
    model: ModelArgs,
    adapters: AdapterArgs,
    settings: EngineSettings,
    isa: Isa,
    hub: HubOptions,
    engine: EngineArgs,
    tier: TierArgs,
}

impl Loading {
    /// Loads the model and tells the server and the user that it is ready.
    fn run(self, server: &ServerHandle, url: String) -> Result<(), CommandError> {
        let machine = Machine::detect();
        let model = open_model(
            &self.model.model,
            self.model.loading,
            &self.hub,
            &mut DownloadProgress::default(),
        )?;
        let plan = plan_memory(&self.settings, &model, &machine)?;
        let num_threads = self.engine.threads.and_then(|threads| NonZeroUsize::new(threads.into()));
        let num_threads = num_threads.unwrap_or(machine.num_cores);
        output::line(format!("model            {} ({})", model.name, model.path.display()));
        plan.describe().iter().for_each(output::line);
        output::line(format!("compute          {num_threads} threads, {}", self.isa.name()));
        let options = ServeOptions {
            plan,
            names: self.model.served_model_name,
            chat_template: self.model.chat_template,
            output_parsers: OutputParsers {
                tools: self.model.tool_call_parser,
                reasoning: self.model.reasoning_parser,
            },
            pooling: self.model.pooling,
            adapters: self.adapters.lora,
            adapter_folder: self.adapters.lora_dir,
            isa: self.isa,
            num_threads,
            tiers: TierSettings::new(&self.tier),
            idle_release: self.tier.kv_idle_release.0,
        };
        let StartedModel { served, engine, kv } = assemble::start_engine(&model, options)?;
        let name = served.names[0].clone();
        server.set_ready(served, engine, kv);
        output::line(format!("serving {name} on {url}"));
        Ok(())
    }
}
