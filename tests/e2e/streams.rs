//! Streams: chunks add up to the whole response, and nothing leaks that the whole would not hold.

use crate::shared_server::DEFAULT;
use libtest_mimic::Trial;
use serde_json::{Value, json};

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        chat_chunks_add_up_to_the_whole_message,
        emoji_that_span_tokens_arrive_whole,
        a_stream_of_random_tokens_adds_up_to_the_whole,
        nothing_of_a_stop_string_leaks_into_a_stream,
        usage_comes_in_one_more_chunk_only_if_asked_for,
        choices_of_one_stream_keep_apart,
    ]
}

/// Returns the texts of the chunks of choice 0.
fn texts(chunks: &[Value]) -> Vec<&str> {
    let choices = chunks.iter().filter_map(|chunk| chunk["choices"].get(0));
    choices.filter_map(|choice| choice["text"].as_str()).collect()
}

fn chat_chunks_add_up_to_the_whole_message() {
    let server = DEFAULT.get();
    let mut body = json!({
        "messages": [{"role": "user", "content": "Name three colors."}],
        "temperature": 0, "max_tokens": 60,
    });
    let whole = server.post("/v1/chat/completions", &body).ok();
    body["stream"] = json!(true);
    let chunks = server.send("/v1/chat/completions", &body).events().chunks();
    let deltas = || chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]);
    let content: String = deltas().filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!(whole["choices"][0]["message"]["content"], content);
    assert_eq!(deltas().filter(|delta| delta["role"] == "assistant").count(), 1);
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let last = chunks.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk"));
}

fn emoji_that_span_tokens_arrive_whole() {
    let server = DEFAULT.get();
    let body = json!({
        "prompt": "The rocket 🚀 and the party 🎉. The rocket 🚀 and the party 🎉. The rocket",
        "temperature": 0, "max_tokens": 40,
    });
    let chunks = server.stream(&body).chunks();
    let texts = texts(&chunks);
    assert!(texts.iter().any(|text| text.contains('🚀')), "{texts:?}");
    assert!(texts.iter().any(|text| text.contains('🎉')), "{texts:?}");
    assert!(!texts.iter().any(|text| text.contains('\u{FFFD}')), "{texts:?}");
    assert_eq!(server.complete(&body)["choices"][0]["text"], texts.concat());
}

fn a_stream_of_random_tokens_adds_up_to_the_whole() {
    let server = DEFAULT.get();
    for seed in 0..4 {
        // So hot that most outputs hold pieces of characters which nothing completes.
        let body = json!({
            "prompt": "🚀", "temperature": 2, "seed": seed, "max_tokens": 24, "ignore_eos": true,
        });
        let whole = server.complete(&body);
        assert_eq!(whole["choices"][0]["text"], texts(&server.stream(&body).chunks()).concat());
    }
}

fn nothing_of_a_stop_string_leaks_into_a_stream() {
    let server = DEFAULT.get();
    let body = json!({
        "prompt": "A, B, C, D, E, F, G,", "temperature": 0, "max_tokens": 40, "stop": "K, L, M, N",
    });
    let chunks = server.stream(&body).chunks();
    assert_eq!(texts(&chunks).concat(), " H, I, J, ");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
    // What only begins like a stop string is text after all.
    let mut near_miss = body;
    near_miss["stop"] = json!("K, L, Q");
    near_miss["max_tokens"] = json!(11);
    let chunks = server.stream(&near_miss).chunks();
    assert_eq!(texts(&chunks).concat(), server.complete(&near_miss)["choices"][0]["text"]);
    assert!(texts(&chunks).concat().contains("K, L"), "{chunks:?}");
}

fn usage_comes_in_one_more_chunk_only_if_asked_for() {
    let server = DEFAULT.get();
    let mut body = json!({"prompt": "Once", "max_tokens": 4, "ignore_eos": true});
    let chunks = server.stream(&body).chunks();
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()), "{chunks:?}");
    assert!(chunks.iter().all(|chunk| chunk["choices"].as_array().unwrap().len() == 1));
    body["stream_options"] = json!({"include_usage": true});
    let chunks = server.stream(&body).chunks();
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 4);
    for chunk in others {
        assert_eq!(chunk.get("usage"), Some(&Value::Null), "{chunk}");
        assert_eq!(chunk["choices"].as_array().unwrap().len(), 1, "{chunk}");
    }
}

fn choices_of_one_stream_keep_apart() {
    let server = DEFAULT.get();
    let body = json!({
        "prompt": ["The sun is", "The moon is"], "n": 2, "seed": 3, "max_tokens": 12,
    });
    let whole = server.complete(&body);
    let chunks = server.stream(&body).chunks();
    for choice in whole["choices"].as_array().unwrap() {
        let of_choice = || {
            let choices = chunks.iter().map(|chunk| &chunk["choices"][0]);
            choices.filter(|streamed| streamed["index"] == choice["index"])
        };
        let text: String = of_choice().filter_map(|streamed| streamed["text"].as_str()).collect();
        assert_eq!(choice["text"], text);
        let reasons: Vec<_> = of_choice()
            .map(|streamed| &streamed["finish_reason"])
            .filter(|r| !r.is_null())
            .collect();
        assert_eq!(reasons, [&choice["finish_reason"]]);
    }
}
