//! Python clients against the server: `openai`, `anthropic`, `ollama`, LangChain, LiteLLM and
//! `servebench`.
//!
//! They are installed once, at pinned versions and by the user's own pip, into a folder of the
//! build; nothing of the user's Python is touched.

use crate::server_process::ServerProcess;
use crate::shared_server::{API_KEY, DEFAULT, FEW_SHOT, KEYED};
use libtest_mimic::Trial;
use serde_json::Value;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        the_openai_client_gets_what_it_expects,
        the_openai_client_is_refused_without_the_key,
        the_openai_client_calls_tools,
        the_openai_client_gets_embeddings_and_prompt_logprobs,
        the_ollama_client_gets_what_it_expects,
        the_anthropic_client_gets_what_it_expects,
        langchains_clients_get_what_they_expect,
        litellm_gets_what_it_expects,
        the_openai_client_uses_the_responses_api,
        servebench_quick_ends_without_a_failed_request,
        servebench_runs_at_several_levels_without_a_failed_request,
    ]
}

/// What pip installs.
const PACKAGES: [&str; 7] = [
    "anthropic==2.14.0",
    "langchain-anthropic==1.7.10",
    "langchain-openai==1.7.4",
    "litellm==1.110.2",
    "ollama==0.6.3",
    "openai==3.57.0",
    "servebench==1.1.3",
];
/// What the names of the clients' settings begin with.
const SETTINGS: [&str; 6] =
    ["OPENAI_", "ANTHROPIC_", "OLLAMA_", "LANGCHAIN_", "LANGSMITH_", "LITELLM_"];
/// How Python is called here.
const PYTHON: &str = if cfg!(windows) { "python" } else { "python3" };

/// Returns the folder with the clients; the first call installs them if needed.
fn client_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| installed("python-clients", &PACKAGES))
}

/// Returns the folder that holds these packages, which are installed if it is not there.
pub(crate) fn installed(name: &str, packages: &[&str]) -> PathBuf {
    let build = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let folder = build.join(format!("{name}-{}", packages.join("-").replace('=', "")));
    if !folder.is_dir() {
        // Under another name first, so that an interrupted installation is not taken for one.
        let unfinished = build.join(format!("{name}-unfinished"));
        let _ = fs::remove_dir_all(&unfinished);
        // What is imported is compiled then; most of it never is.
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        let wheels = ["--only-binary=:all:", "--no-compile", "--target"];
        let mut install = Command::new(PYTHON);
        run(install.args(pip).args(wheels).arg(&unfinished).args(packages));
        fs::rename(&unfinished, &folder).unwrap();
    }
    folder
}

/// Runs a command that must succeed and returns what it printed.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{stdout}\n{stderr}", output.status);
    stdout
}

/// Returns a Python that sees the clients and no settings of the user.
fn python() -> Command {
    python_with(client_folder())
}

/// Returns a Python that sees the packages of a folder and no settings of the user.
pub(crate) fn python_with(folder: &Path) -> Command {
    let mut python = Command::new(PYTHON);
    python.env("PYTHONPATH", folder);
    let is_setting = |name: &str| SETTINGS.iter().any(|prefix| name.starts_with(prefix));
    for (variable, _) in env::vars_os() {
        if variable.to_str().is_some_and(is_setting) {
            python.env_remove(variable);
        }
    }
    python
}

fn base_url(server: &ServerProcess) -> String {
    format!("http://{}/v1", server.address)
}

fn run_script(name: &str, arguments: &[&str]) {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python");
    run(python().arg(scripts.join(name)).args(arguments));
}

fn the_openai_client_gets_what_it_expects() {
    run_script("openai_tour.py", &[&base_url(&DEFAULT.get())]);
}

fn the_openai_client_is_refused_without_the_key() {
    run_script("openai_key.py", &[&base_url(&KEYED.get()), API_KEY]);
}

fn the_openai_client_calls_tools() {
    run_script("openai_tools.py", &[&base_url(&FEW_SHOT.get())]);
    run_script("openai_responses.py", &[&base_url(&FEW_SHOT.get()), "tools"]);
}

/// Runs a script with the addresses of a server and of one whose model calls tools.
fn run_tour(name: &str) {
    let addresses = [&DEFAULT, &FEW_SHOT].map(|server| server.get().address.to_string());
    run_script(name, &addresses.each_ref().map(String::as_str));
}

fn the_anthropic_client_gets_what_it_expects() {
    run_tour("anthropic_tour.py");
}

fn langchains_clients_get_what_they_expect() {
    run_tour("langchain_tour.py");
}

fn litellm_gets_what_it_expects() {
    run_tour("litellm_tour.py");
}

fn the_openai_client_gets_embeddings_and_prompt_logprobs() {
    run_script("openai_embeddings.py", &[&base_url(&DEFAULT.get())]);
}

fn the_ollama_client_gets_what_it_expects() {
    let host = |server: &ServerProcess| format!("http://{}", server.address);
    let [plain, tools] = [host(&DEFAULT.get()), host(&FEW_SHOT.get())];
    run_script("ollama_tour.py", &[&plain, "smollm2-135m", &tools]);
}

fn the_openai_client_uses_the_responses_api() {
    run_script("openai_responses.py", &[&base_url(&DEFAULT.get())]);
}

/// Runs the Python servebench and returns what it prints.
pub(crate) fn servebench_in_python(arguments: &[String]) -> String {
    run(python().args(["-c", "from servebench.cli import app; app()"]).args(arguments))
}

/// Runs servebench and returns its levels, of which no request may have failed.
fn servebench(record: &str, arguments: &[&str]) -> Vec<Value> {
    let server = DEFAULT.get();
    let record = Path::new(env!("CARGO_TARGET_TMPDIR")).join(record);
    let mut command = python();
    command.args(["-c", "from servebench.cli import app; app()"]).args(arguments);
    command.args(["--url", &base_url(&server), "--out"]).arg(&record);
    let printed = run(&mut command);
    let result: Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
    // What it calls every server that has Ollama's routes: it looks for those first.
    assert_eq!(result["environment"]["engine"], "Ollama", "{printed}");
    let levels = result["levels"].as_array().unwrap();
    for level in levels {
        assert_eq!(level["summary"]["failed"], 0, "{printed}");
        assert!(level["summary"]["completed"].as_u64().unwrap() > 0, "{printed}");
        for request in level["requests"].as_array().unwrap() {
            assert_eq!(request["ok"], true, "{request}");
            assert_eq!(request["token_source"], "usage", "{request}");
        }
    }
    server.wait_until_idle();
    levels.clone()
}

fn servebench_quick_ends_without_a_failed_request() {
    // One user and no more: each further level takes another 16 requests of 128 tokens.
    let levels = servebench("servebench-quick.json", &["quick", "--max", "1"]);
    assert_eq!(levels.len(), 1);
}

fn servebench_runs_at_several_levels_without_a_failed_request() {
    let arguments = [
        "run",
        "--model",
        "smollm2-135m",
        "--concurrency",
        "1,4,16",
        "--num-requests",
        "16",
        "--input-len",
        "32",
        "--output-len",
        "16",
        "--warmup",
        "1",
        "--seed",
        "1",
        "--no-gpu",
    ];
    let levels = servebench("servebench-run.json", &arguments);
    let concurrency: Vec<_> = levels.iter().map(|level| level["value"].as_f64()).collect();
    assert_eq!(concurrency, [Some(1.0), Some(4.0), Some(16.0)]);
    for level in levels {
        for request in level["requests"].as_array().unwrap() {
            assert_eq!(request["output_tokens"], 16, "{request}");
        }
    }
}
