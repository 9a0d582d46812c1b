//! Adapters by name: which model answers, what is shared, and what clients may load.

use crate::client::{Connection, Response, get, post};
use crate::harness::{Setup, TestServer};
use crate::script::Gate;
use serde_json::{Value, json};
use std::path::PathBuf;

const COMPLETIONS: &str = "/v1/completions";
const LOAD: &str = "/v1/load_lora_adapter";
const UNLOAD: &str = "/v1/unload_lora_adapter";

/// A folder of adapters that say `x` and `y`, beside one that clients may not load.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let root = std::env::temp_dir().join(format!("adapters-{test}-{}", std::process::id()));
        for (name, says) in [("lora/says-x", "x"), ("lora/says-y", "y"), ("outside", "z")] {
            std::fs::create_dir_all(root.join(name)).unwrap();
            std::fs::write(root.join(name).join("says"), says).unwrap();
        }
        std::fs::create_dir_all(root.join("lora/empty")).unwrap();
        Self(root)
    }

    fn server(&self) -> TestServer {
        self.server_at(Gate::new(u64::MAX))
    }

    fn server_at(&self, gate: Gate) -> TestServer {
        let adapter_folder = Some(self.0.join("lora"));
        TestServer::start(Setup { adapter_folder, gate, ..Setup::default() })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays behind in the temporary one harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn load(server: &TestServer, name: &str, path: &str) -> Response {
    let body = json!({"lora_name": name, "lora_path": path});
    post(server.address, LOAD, &body.to_string())
}

fn unload(server: &TestServer, name: &str) -> Response {
    post(server.address, UNLOAD, &json!({"lora_name": name}).to_string())
}

fn complete(server: &TestServer, model: &str, prompt: &str) -> Value {
    let body = json!({"model": model, "prompt": prompt, "max_tokens": 3, "temperature": 0});
    let response = post(server.address, COMPLETIONS, &body.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

fn code(response: &Response) -> (u16, String) {
    let code = response.json()["error"]["code"].as_str().map(str::to_owned);
    (response.status, code.unwrap_or_default())
}

#[test]
fn an_adapter_answers_under_its_name_and_is_listed() {
    let folder = Folder::new("answers");
    let server = folder.server();
    assert_eq!(load(&server, "x", "says-x").status, 200);
    assert_eq!(load(&server, "org/y", "says-y").status, 200);
    for (model, text) in [("x", "xxx"), ("org/y", "yyy"), ("script", "ghi"), ("x", "xxx")] {
        let answer = complete(&server, model, "abcdef");
        assert_eq!(
            (&answer["model"], &answer["choices"][0]["text"]),
            (&json!(model), &json!(text))
        );
    }
    let listed = get(server.address, "/v1/models").json();
    let models = listed["data"].as_array().unwrap();
    let names: Vec<_> = models.iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["script", "org/other-name", "org/y", "x"]);
    assert_eq!((&models[0]["parent"], &models[3]["parent"]), (&Value::Null, &json!("script")));
    assert_eq!(get(server.address, "/v1/models/org/y").json()["parent"], "script");
}

#[test]
fn models_and_adapters_share_no_kv() {
    let folder = Folder::new("kv");
    let server = folder.server();
    for (name, path) in [("x", "says-x"), ("y", "says-y"), ("x-again", "says-x")] {
        assert_eq!(load(&server, name, path).status, 200);
    }
    let prompt = "abcdef".repeat(10);
    let cached = |model: &str| {
        let usage = complete(&server, model, &prompt)["usage"].clone();
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(["script", "x", "y"].map(cached), [0; 3]);
    // Equal files are one adapter, whatever they are called.
    assert_eq!(["script", "x", "y", "x-again"].map(cached), [59; 4]);
}

#[test]
fn an_unloaded_adapter_is_gone_for_new_requests_only() {
    let folder = Folder::new("unload");
    let server = folder.server_at(Gate::new(2));
    assert_eq!(load(&server, "x", "says-x").status, 200);
    let body = json!({"model": "x", "prompt": "a", "max_tokens": 5, "temperature": 0});
    let running = Connection::post(server.address, COMPLETIONS, &body.to_string());
    server.gate.wait_for_step();
    assert_eq!(unload(&server, "x").status, 200);
    assert_eq!(code(&unload(&server, "x")), (404, "model_not_found".to_owned()));
    let refused = post(server.address, COMPLETIONS, &body.to_string());
    assert_eq!(code(&refused), (404, "model_not_found".to_owned()));
    // Another one under the same name is not what the running request began with.
    assert_eq!(load(&server, "x", "says-y").status, 200);
    server.gate.open();
    assert_eq!(running.finish().json()["choices"][0]["text"], "xxxxx");
    assert_eq!(complete(&server, "x", "a")["choices"][0]["text"], "yyy");
}

#[test]
fn clients_load_from_the_folder_for_that_and_nowhere_else() {
    let folder = Folder::new("outside");
    let server = folder.server();
    let outside = folder.0.join("outside");
    std::os::unix::fs::symlink(&outside, folder.0.join("lora/link")).unwrap();
    for path in ["../outside", outside.to_str().unwrap(), "link", "absent", "says-x/../.."] {
        let response = load(&server, "z", path);
        assert_eq!(code(&response), (400, "invalid_value".to_owned()), "{path}");
        assert_eq!(response.json()["error"]["param"], "lora_path");
    }
    assert_eq!(load(&server, "z", "empty").status, 400);
    assert_eq!(load(&server, "", "says-x").json()["error"]["param"], "lora_name");
    assert_eq!(load(&server, "script", "says-x").json()["error"]["param"], "lora_name");
    assert_eq!(load(&server, "x", "says-x").status, 200);
    assert_eq!(load(&server, "x", "says-y").status, 400);
    assert_eq!(complete(&server, "x", "a")["choices"][0]["text"], "xxx");
    let unknown = json!({"lora_name": "y", "lora_path": "says-y", "rank": 3});
    assert_eq!(post(server.address, LOAD, &unknown.to_string()).json()["error"]["param"], "rank");
}

#[test]
fn without_such_a_folder_adapters_are_fixed() {
    let server = TestServer::start(Setup::default());
    assert_eq!(code(&load(&server, "x", "says-x")), (403, "adapters_are_fixed".to_owned()));
    assert_eq!(code(&unload(&server, "x")), (403, "adapters_are_fixed".to_owned()));
}
