//! A `mini-infer serve` process.

use crate::binary::{self, MODEL};
use crate::http::{EventStream, Exchange, Response};
use crate::patience::{PATIENCE, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;

/// A signal that asks a process to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StopSignal {
    /// What a terminal sends on Ctrl-C.
    Interrupt,
    /// What supervisors send.
    Terminate,
}

/// A server that has announced itself; dropping it kills the process.
pub(crate) struct ServerProcess {
    child: Child,
    pub(crate) address: SocketAddr,
    /// What it printed before it served.
    pub(crate) announcement: Vec<String>,
}

impl ServerProcess {
    /// Starts a server of the default model on a free port and waits until it serves.
    pub(crate) fn start(flags: &[&str]) -> Self {
        binary::model_path();
        Self::start_with_model(MODEL, flags)
    }

    /// Starts a server of a model, an alias or a file, on a free port and waits until it serves.
    pub(crate) fn start_with_model(model: &str, flags: &[&str]) -> Self {
        let mut child = binary::command(&["serve", "--port", "0", "--model", model])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let printed = lines_of(child.stdout.take().unwrap());
        let mut announcement = Vec::new();
        loop {
            let line = match printed.recv_timeout(PATIENCE) {
                Ok(line) => line,
                Err(error) => {
                    let _ = child.kill();
                    let status = child.wait();
                    panic!("{flags:?}: no server ({error}, {status:?}) after {announcement:?}");
                }
            };
            let served = line.strip_prefix("serving ");
            if let Some((_, address)) = served.and_then(|it| it.split_once(" on http://")) {
                let address = address.parse().unwrap();
                return Self { child, address, announcement };
            }
            announcement.push(line);
        }
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request without a body.
    pub(crate) fn get(&self, path: &str) -> Response {
        Exchange::send(self.address, &format!("GET {path}"), "", "").response()
    }

    /// Sends a JSON body and waits for the whole response.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.send(path, body).response()
    }

    /// Sends a JSON body.
    pub(crate) fn send(&self, path: &str, body: &Value) -> Exchange {
        Exchange::post(self.address, path, &body.to_string())
    }

    /// Asks for a text completion.
    pub(crate) fn complete(&self, body: &Value) -> Value {
        self.post("/v1/completions", body).ok()
    }

    /// Asks for several text completions at the same time and returns the answers in order.
    pub(crate) fn complete_together(&self, bodies: &[Value]) -> Vec<Value> {
        thread::scope(|scope| {
            let start = |body| scope.spawn(move || self.complete(body));
            let threads: Vec<_> = bodies.iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// Asks for a text completion as a stream.
    pub(crate) fn stream(&self, body: &Value) -> EventStream {
        let mut body = body.clone();
        body["stream"] = json!(true);
        self.send("/v1/completions", &body).events()
    }

    /// Asks the model one thing and returns the response to the greedy chat.
    pub(crate) fn ask(&self, question: &str, max_tokens: u32) -> Value {
        let body = json!({
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": max_tokens,
        });
        self.post("/v1/chat/completions", &body).ok()
    }

    /// Returns the map of the KV memory.
    pub(crate) fn kv_map(&self) -> Value {
        self.get("/v1/kv").ok()
    }

    /// Returns the value of a metric that counts, labels included in its name.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        self.metric_text(name).parse().unwrap()
    }

    /// Returns the value of a metric that measures, labels included in its name.
    pub(crate) fn measure(&self, name: &str) -> f64 {
        self.metric_text(name).parse().unwrap()
    }

    fn metric_text(&self, name: &str) -> String {
        let metrics = self.get("/metrics").body;
        let name = format!("mini_infer_{name} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
        value.unwrap_or_else(|| panic!("no {name}in\n{metrics}")).to_owned()
    }

    /// Waits until a metric has a value.
    pub(crate) fn wait_for_metric(&self, name: &str, expected: u64) {
        wait_for(&format!("{name} = {expected}"), || (self.metric(name) == expected).then_some(()));
    }

    /// Waits until nothing runs or waits, and checks that no block is held.
    pub(crate) fn wait_until_idle(&self) {
        self.wait_for_metric("waiting_sequences", 0);
        self.wait_for_metric("running_sequences", 0);
        self.wait_for_metric("kv_blocks{state=\"active\"}", 0);
        let free = self.metric("kv_blocks{state=\"free\"}");
        let cached = self.metric("kv_blocks{state=\"cached\"}");
        assert_eq!(free + cached, self.metric("kv_pool_blocks"));
    }

    /// Asks the process to stop.
    pub(crate) fn signal(&self, signal: StopSignal) {
        let name = match signal {
            StopSignal::Interrupt => "-INT",
            StopSignal::Terminate => "-TERM",
        };
        let id = self.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Ends the process as a power cut does: nothing of it runs any more.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Returns the bytes of the process that lie in memory, as Linux tells; without mapped files,
    /// which take memory only as long as nobody needs it.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.memory_bytes("RssAnon")
    }

    /// Returns one of the sizes that Linux tells of the process.
    pub(crate) fn memory_bytes(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap().trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    }

    /// Waits for the process to end by itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let child = &mut self.child;
        wait_for(&format!("an exit within {PATIENCE:?}"), || child.try_wait().unwrap())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns lines as they are printed; the channel closes when there will be no more.
fn lines_of(stdout: ChildStdout) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // What is printed after somebody wanted to know is read all the same, so that the
            // process never waits for a reader.
            let _ = sender.send(line);
        }
    });
    lines
}
