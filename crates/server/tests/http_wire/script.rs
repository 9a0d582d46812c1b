//! A model whose next token depends on the last one only, and the tokenizer that goes with it.
//!
//! Token ids below 256 are bytes. `a` is followed by `b`, `z` by `a`, a digit by the next one and
//! `9` by the end of the turn; `!` begins an emoji of four bytes, then `.` and the end. All this is
//! certain. What follows `?` and `%` is not:
//!
//! ```text
//! ? ┬ 0.6 A ┬ 0.25 C ─ end        % ┬ 0.55 J ─ end
//!   │       ├ 0.25 D ─ end          └ 0.45 K ─ L ─ M ─ N ─ end
//!   │       ├ 0.25 E ─ end
//!   │       └ 0.25 F ─ end
//!   └ 0.4 B ── G ─ end
//! ```

use crate::byte_level;
use mini_infer_core::{
    Adapter, Batch, Executor, ExecutorError, KvTransfer, Pooling, RowForm, TokenId,
};
use mini_infer_grammar::Grammars;
use mini_infer_server::{
    AdapterSource, Adapters, EmbeddingShape, LoadedAdapter, ModelDetails, ServedModel,
};
use mini_infer_text::{ChatTemplate, GgufVocabulary, OutputFormat, Tokenizer};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime};

/// The token that ends a turn.
pub(crate) const END: TokenId = 257;
const VOCAB_SIZE: usize = 261;
/// Dimensions of the hidden states that the script makes up.
const HIDDEN_SIZE: usize = 3;
const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'tool' %}\
    {{ raise_exception('role tool is not supported') }}{% endif %}\
    <|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}\
    {% if ending %}{{ ending }}{% endif %}";

/// Returns the tokens that may follow `last` and how likely each is.
fn followers(last: TokenId) -> Vec<(TokenId, f32)> {
    let branches: &[(u8, f32)] = match u8::try_from(last) {
        Ok(b'?') => &[(b'A', 0.6), (b'B', 0.4)],
        Ok(b'A') => &[(b'C', 0.25), (b'D', 0.25), (b'E', 0.25), (b'F', 0.25)],
        Ok(b'%') => &[(b'J', 0.55), (b'K', 0.45)],
        _ => return vec![(next_token(last), 1.0)],
    };
    branches.iter().map(|&(byte, probability)| (byte.into(), probability)).collect()
}

fn next_token(last: TokenId) -> TokenId {
    match last {
        END => b'a'.into(),
        0xF0 => 0x9F,
        0x9F => 0x98,
        0x98 => 0x80,
        0x80 => b'.'.into(),
        _ => match u8::try_from(last).unwrap_or(b'z') {
            b'!' => 0xF0,
            b'.' | b'9' | b'C'..=b'G' | b'J' | b'N' => END,
            b'B' => b'G'.into(),
            b @ b'K'..=b'M' => TokenId::from(b) + 1,
            b @ (b'a'..=b'y' | b'0'..=b'8') => TokenId::from(b) + 1,
            _ => b'a'.into(),
        },
    }
}

/// Lets steps pass, or holds them.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Arc<(Mutex<Passage>, Condvar)>);

#[derive(Debug)]
struct Passage {
    num_steps_left: u64,
    num_steps_waiting: u64,
}

impl Gate {
    pub(crate) fn new(num_steps: u64) -> Self {
        let passage = Passage { num_steps_left: num_steps, num_steps_waiting: 0 };
        Self(Arc::new((Mutex::new(passage), Condvar::new())))
    }

    /// Lets `num_steps` more steps pass.
    pub(crate) fn pass(&self, num_steps: u64) {
        let mut passage = self.0.0.lock().unwrap();
        passage.num_steps_left = passage.num_steps_left.saturating_add(num_steps);
        self.0.1.notify_all();
    }

    pub(crate) fn open(&self) {
        self.pass(u64::MAX);
    }

    /// Waits until a step stands before the closed gate.
    pub(crate) fn wait_for_step(&self) {
        let passage = self.0.0.lock().unwrap();
        let _held = self.0.1.wait_while(passage, |passage| passage.num_steps_waiting == 0).unwrap();
    }

    fn enter(&self) {
        let mut passage = self.0.0.lock().unwrap();
        passage.num_steps_waiting += 1;
        self.0.1.notify_all();
        let mut passage =
            self.0.1.wait_while(passage, |passage| passage.num_steps_left == 0).unwrap();
        passage.num_steps_waiting -= 1;
        passage.num_steps_left -= 1;
    }
}

/// The scripted model.
pub(crate) struct ScriptExecutor {
    pub(crate) gate: Gate,
    /// Steps before the first that fails.
    pub(crate) num_good_steps: u64,
    /// Blocks whose memory was given back.
    pub(crate) num_discarded: Arc<AtomicU64>,
    /// The tokens of the rows that the last step kept, and what follows them.
    kept: Vec<(TokenId, Vec<(TokenId, f32)>)>,
}

impl ScriptExecutor {
    pub(crate) fn new(gate: Gate, num_good_steps: u64, num_discarded: Arc<AtomicU64>) -> Self {
        Self { gate, num_good_steps, num_discarded, kept: Vec::new() }
    }
}

/// Returns what follows a row of a batch.
fn followers_of(batch: &Batch, row: u32) -> Vec<(TokenId, f32)> {
    let sequence = batch.query_start_loc.partition_point(|&start| start <= row) - 1;
    match &batch.adapters[sequence] {
        Some(adapter) => vec![(*adapter.weights::<TokenId>().unwrap(), 1.0)],
        None => followers(batch.tokens[row as usize]),
    }
}

fn push_row(followers: &[(TokenId, f32)], logits: &mut Vec<f32>) {
    // So unlikely that its log probability would not fit OpenAI's floor.
    let first = logits.len();
    logits.resize(first + VOCAB_SIZE, -1e30);
    for &(token, probability) in followers {
        logits[first + token as usize] = probability.ln();
    }
}

impl Executor for ScriptExecutor {
    fn vocab_size(&self) -> usize {
        VOCAB_SIZE
    }

    fn read_kept_rows(
        &mut self,
        rows: Range<usize>,
        form: RowForm,
        out: &mut Vec<f32>,
    ) -> Result<(), ExecutorError> {
        out.clear();
        for (token, followers) in &self.kept[rows] {
            match form {
                RowForm::Logits => push_row(followers, out),
                RowForm::HiddenState => out.extend([*token as f32, 1.0, followers[0].0 as f32]),
            }
        }
        Ok(())
    }

    /// The script reads tokens only, so nothing has to be moved.
    fn transfer(&mut self, transfers: &[KvTransfer]) {
        let discards = transfers.iter().filter(|t| matches!(t, KvTransfer::Discard { .. }));
        self.num_discarded.fetch_add(discards.count() as u64, Ordering::Relaxed);
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        self.gate.enter();
        if self.num_good_steps == 0 {
            return Err(ExecutorError { message: "the script says so".to_owned() });
        }
        self.num_good_steps -= 1;
        logits.clear();
        for &row in &batch.logits_rows {
            push_row(&followers_of(batch, row), logits);
        }
        let kept = batch.kept_rows.iter();
        let kept = kept.map(|&row| (batch.tokens[row as usize], followers_of(batch, row)));
        self.kept = kept.collect();
        Ok(())
    }
}

/// Adapters of the script: a folder with a file `says`, whose first byte follows everything.
struct ScriptAdapters;

impl AdapterSource for ScriptAdapters {
    fn load(&self, folder: &Path) -> Result<LoadedAdapter, String> {
        let says = std::fs::read(folder.join("says")).map_err(|error| error.to_string())?;
        let byte = *says.first().ok_or("the file is empty")?;
        let adapter = Adapter::new(TokenId::from(byte));
        Ok(LoadedAdapter { adapter, digest: [byte; 32] })
    }
}

pub(crate) fn served_model(max_model_len: u32, adapter_folder: Option<PathBuf>) -> ServedModel {
    let markup = ["<|im_start|>", "<|im_end|>", "<fim_prefix>", "<fim_suffix>", "<fim_middle>"];
    let vocabulary = byte_level::vocabulary(&markup, &[]);
    let vocabulary = GgufVocabulary { eos: Some(END), ..vocabulary };
    let tokenizer = Tokenizer::from_gguf(vocabulary).unwrap();
    let chat_template = ChatTemplate::new(TEMPLATE, &tokenizer).unwrap();
    let stop_token_ids = tokenizer.stop_token_ids().to_vec();
    let tokenizer = Arc::new(tokenizer);
    let grammars = Grammars::new(Arc::clone(&tokenizer), stop_token_ids.clone(), 1).unwrap();
    ServedModel {
        names: vec!["script".to_owned(), "org/other-name".to_owned()],
        stop_token_ids,
        tokenizer,
        grammars: Arc::new(grammars),
        chat_template: Some(chat_template),
        adapters: Adapters::new(Box::new(ScriptAdapters), adapter_folder),
        output_format: OutputFormat::default(),
        max_model_len,
        vocab_size: VOCAB_SIZE,
        embeddings: EmbeddingShape { pooling: Pooling::Mean, hidden_size: HIDDEN_SIZE },
        details: ModelDetails {
            format: "script".to_owned(),
            architecture: "bytes".to_owned(),
            num_parameters: 1_500_000,
            weight_type: "F32".to_owned(),
            size_bytes: 6_000_000,
            modified_at: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
        },
    }
}
