//! A server under test, on its own threads and a free port.

use crate::client::{Response, get};
use crate::script::{Gate, ScriptExecutor, served_model};
use mini_infer_core::{BlockSize, Executor, PrefixCaching};
use mini_infer_engine::{BlockHashing, Engine, EngineConfig, KvAllocator, TargetItl};
use mini_infer_server::{
    EngineHandle, EngineThreadConfig, KvDetails, ServedModel, Server, ServerConfig, ServerHandle,
    SystemClock,
};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long a test waits for something that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// What is special about a server under test.
pub(crate) struct Setup {
    pub(crate) config: ServerConfig,
    pub(crate) engine: EngineConfig,
    pub(crate) gate: Gate,
    pub(crate) num_good_steps: u64,
    pub(crate) thread: EngineThreadConfig,
    pub(crate) details: KvDetails,
    pub(crate) kv_log: Option<mpsc::Sender<String>>,
    pub(crate) access_log: Option<mpsc::Sender<String>>,
    /// Where spans are sent.
    pub(crate) otlp_endpoint: Option<String>,
    /// Where clients may load adapters from.
    pub(crate) adapter_folder: Option<PathBuf>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            config: ServerConfig::default(),
            engine: EngineConfig {
                block_size: BlockSize::DEFAULT,
                num_blocks: 64,
                max_model_len: 256,
                max_num_seqs: 8,
                max_batched_tokens: 64,
                target_itl: TargetItl::Derived,
                max_queue_len: 4,
                prefix_caching: PrefixCaching::On,
                block_hashing: BlockHashing::Chained,
                allocator: KvAllocator::Paged,
                window: None,
                content_hash: None,
            },
            gate: Gate::new(u64::MAX),
            num_good_steps: u64::MAX,
            thread: EngineThreadConfig::default(),
            details: KvDetails::default(),
            kv_log: None,
            access_log: None,
            otlp_endpoint: None,
            adapter_folder: None,
        }
    }
}

/// Where a server tells what it does.
#[derive(Default)]
struct Outlets {
    kv_log: Option<mpsc::Sender<String>>,
    access_log: Option<mpsc::Sender<String>>,
    otlp_endpoint: Option<String>,
}

/// A running server.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) gate: Gate,
    pub(crate) num_discarded: Arc<AtomicU64>,
    handle: ServerHandle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TestServer {
    /// Starts a server with the scripted model.
    pub(crate) fn start(setup: Setup) -> Self {
        let (gate, num_good_steps) = (setup.gate.clone(), setup.num_good_steps);
        let num_discarded = Arc::default();
        let executor = ScriptExecutor::new(gate, num_good_steps, Arc::clone(&num_discarded));
        let model = served_model(setup.engine.max_model_len, setup.adapter_folder.clone());
        let mut server = Self::start_model(setup, executor, model);
        server.num_discarded = num_discarded;
        server
    }

    /// Starts a server with another model.
    pub(crate) fn start_model(
        setup: Setup,
        executor: impl Executor + Send + 'static,
        model: ServedModel,
    ) -> Self {
        let Setup { config, engine, gate, thread, details, .. } = setup;
        let Setup { kv_log, access_log, otlp_endpoint, .. } = setup;
        let outlets = Outlets { kv_log, access_log, otlp_endpoint };
        let mut server = Self::start_watched(config, outlets);
        let engine = Engine::new(engine, executor, SystemClock::new()).unwrap();
        let engine = EngineHandle::spawn(engine, thread).unwrap();
        server.handle.set_ready(model, engine, details);
        server.gate = gate;
        server
    }

    /// Starts a server whose model never comes.
    pub(crate) fn start_loading(config: ServerConfig) -> Self {
        Self::start_watched(config, Outlets::default())
    }

    fn start_watched(config: ServerConfig, outlets: Outlets) -> Self {
        let Outlets { kv_log, access_log, otlp_endpoint } = outlets;
        let (sender, receiver) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let mut server = Server::bind("127.0.0.1:0", config).await.unwrap();
                if let Some(lines) = kv_log {
                    // A test that has seen enough hangs up.
                    server = server.with_kv_log(move |line| drop(lines.send(line.to_owned())));
                }
                if let Some(lines) = access_log {
                    let write = move |line: &str| drop(lines.send(line.to_owned()));
                    server = server.with_access_log(write).unwrap();
                }
                if let Some(endpoint) = otlp_endpoint {
                    server = server.with_traces(&endpoint).unwrap();
                }
                sender.send((server.local_addr().unwrap(), server.handle())).unwrap();
                server
                    .run(async {
                        let _ = stopped.await;
                    })
                    .await
            })
        });
        let (address, handle) = receiver.recv().unwrap();
        let (stop, thread) = (Some(stop), Some(thread));
        let num_discarded = Arc::default();
        Self { address, gate: Gate::new(0), num_discarded, handle, stop, thread }
    }

    /// Asks the server to shut down.
    pub(crate) fn ask_to_stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Waits for the server to end by itself.
    pub(crate) fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }

    /// Returns the value of a metric, labels included in its name.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let response = get(self.address, "/metrics");
        let line = response.body.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in\n{}", response.body)).trim().parse().unwrap()
    }

    /// Waits until a metric has a value.
    pub(crate) fn wait_for_metric(&self, name: &str, expected: u64) {
        wait_until(name, || self.metric(name) == expected);
    }

    /// Waits until nothing runs or waits, and checks that no block is held.
    pub(crate) fn wait_until_idle(&self) {
        self.wait_for_metric("mini_infer_waiting_sequences", 0);
        self.wait_for_metric("mini_infer_running_sequences", 0);
        self.wait_for_metric("mini_infer_kv_blocks{state=\"active\"}", 0);
        let free = self.metric("mini_infer_kv_blocks{state=\"free\"}");
        let cached = self.metric("mini_infer_kv_blocks{state=\"cached\"}");
        assert_eq!(free + cached, self.metric("mini_infer_kv_pool_blocks"));
    }

    /// Sends a request that must succeed.
    pub(crate) fn check_alive(&self) {
        let body = r#"{"model": "script", "prompt": "x8", "max_tokens": 5}"#;
        let response = crate::client::post(self.address, "/v1/completions", body);
        assert_eq!(
            (response.status, response.json()["choices"][0]["text"].as_str()),
            (200, Some("9"))
        );
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.gate.open();
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Polls until `condition` holds.
pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not come true");
        std::thread::yield_now();
    }
}

/// Checks that a response is an error of OpenAI's shape and returns its `param` and `code`.
pub(crate) fn error_of(response: &Response) -> (String, String) {
    let json = response.json();
    let error = json.get("error").unwrap_or_else(|| panic!("no error in {}", response.body));
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()));
    assert!(error["type"].is_string());
    let text = |field: &str| error[field].as_str().unwrap_or_default().to_owned();
    (text("param"), text("code"))
}
