//! Puts a server together: checkpoint → plan → tokenizer and template → model → engine.

use crate::adapters::{CpuAdapters, NamedAdapter};
use crate::cli::{LoadingArgs, PoolingArg};
use crate::config::EngineSettings;
use crate::error::CommandError;
use crate::folder_text;
use crate::gguf_text;
use crate::kv_tier::{self, TierSettings};
use crate::load_progress::LoadProgress;
use crate::machine::Machine;
use crate::memory_plan::{MemoryPlan, ModelSizes};
use crate::model_details;
use crate::output_format::OutputParsers;
use mini_infer_core::{Batch, BlockId, ContentHash, Executor, TokenId};
use mini_infer_engine::Engine;
use mini_infer_grammar::Grammars;
use mini_infer_hub::{HubOptions, Progress, ResolvedModel, resolve};
use mini_infer_kernels::{Isa, KvDtype, KvStorage, QuantizedType};
use mini_infer_model::ops::cpu::{CpuOps, StoredKeys};
use mini_infer_model::{Checkpoint, ModelConfig, ModelError, ModelExecutor, Transformer};
use mini_infer_server::{
    Adapters, EmbeddingShape, EngineHandle, EngineThreadConfig, KvDetails, ServedModel, SystemClock,
};
use mini_infer_text::{ChatTemplate, Tokenizer};
use mini_infer_tier::{TierStack, content_key};
use std::fs::read_to_string;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Part of the pool that stays cached through idle times, so that whoever comes back finds the last
/// conversation: small enough for the memory of an idle server to stay below 1 % of the pool. With
/// tiers nothing stays: they give it back, and a prefix whose first block a crash takes with the pool
/// would be lost to them whole.
const IDLE_KEEP_DIVISOR: u32 = 200;

/// KV that is evicted at once in idle times: a fraction of what tiers let wait to be written.
const IDLE_SLICE_BYTES: usize = 16 << 20;
/// Time in which a tier writes such a slice, on a disk of 400 MB a second.
const TIER_PAUSE: Duration = Duration::from_millis(40);

/// Threads that compute the forward pass for each one that computes masks of grammars: a mask takes
/// less than a hundredth of a step on the machines that people have.
const COMPUTE_PER_MASK_THREAD: usize = 4;

/// A checkpoint that was found and opened; its weights are not loaded.
pub(crate) struct OpenedModel {
    /// Name to serve it under where the user gives none.
    pub(crate) name: String,
    /// Its file, or its folder.
    pub(crate) path: PathBuf,
    /// What is in it.
    pub(crate) checkpoint: Checkpoint,
    /// What its matrices of floats are quantised to, if they are.
    pub(crate) quantize_to: Option<QuantizedType>,
}

/// Returns where models come from: what the environment says, and no weights of unsupported ones.
///
/// # Errors
/// When a variable of the environment cannot be used.
pub(crate) fn model_sources() -> Result<HubOptions, CommandError> {
    fn check_config(config: &[u8]) -> Result<(), String> {
        ModelConfig::from_json(config).map(drop).map_err(|error| error.to_string())
    }
    Ok(HubOptions { check_config: Some(check_config), ..HubOptions::from_env()? })
}

/// Finds a model, fetching what is missing, and opens it.
///
/// # Errors
/// When it cannot be found, fetched or read, or holds nothing to quantise although that is asked.
pub(crate) fn open_model(
    model: &str,
    loading: LoadingArgs,
    options: &HubOptions,
    progress: &mut dyn Progress,
) -> Result<OpenedModel, CommandError> {
    let ResolvedModel { name, files } = resolve(model, options, progress)?;
    let mut checkpoint = Checkpoint::open(files.path())?;
    let quantize_to = loading.quantize.map(QuantizedType::from);
    if let Some(to) = quantize_to {
        checkpoint = checkpoint.quantized_to(to)?;
    }
    Ok(OpenedModel { name, path: files.path().to_owned(), checkpoint, quantize_to })
}

/// Plans the memory of `model` on `machine`.
///
/// # Errors
/// When the settings do not fit the model or the machine.
pub(crate) fn plan_memory(
    settings: &EngineSettings,
    model: &OpenedModel,
    machine: &Machine,
) -> Result<MemoryPlan, CommandError> {
    let sizes = ModelSizes::new(&model.checkpoint);
    Ok(MemoryPlan::new(settings, sizes, machine.memory.available_bytes)?)
}

/// What a server is built from, besides the checkpoint.
pub(crate) struct ServeOptions {
    /// What to allocate.
    pub(crate) plan: MemoryPlan,
    /// Names that clients may ask for; empty for the model's own.
    pub(crate) names: Vec<String>,
    /// File with a chat template to use instead of the checkpoint's.
    pub(crate) chat_template: Option<PathBuf>,
    /// How outputs are told apart into answer, reasoning and tool calls.
    pub(crate) output_parsers: OutputParsers,
    /// How embeddings are made.
    pub(crate) pooling: PoolingArg,
    /// Adapters that are there from the start.
    pub(crate) adapters: Vec<NamedAdapter>,
    /// Where clients may load more from.
    pub(crate) adapter_folder: Option<PathBuf>,
    /// Instruction set of the kernels.
    pub(crate) isa: Isa,
    /// Threads that compute.
    pub(crate) num_threads: NonZeroUsize,
    /// Where KV may go that the pool has no room for.
    pub(crate) tiers: TierSettings,
    /// Idle time after which the pool's memory goes back to the system.
    pub(crate) idle_release: Option<Duration>,
}

/// A model that can be served.
pub(crate) struct StartedModel {
    /// What HTTP needs to know of it.
    pub(crate) served: ServedModel,
    /// Its engine, at work.
    pub(crate) engine: EngineHandle,
    /// Its KV memory besides the blocks.
    pub(crate) kv: KvDetails,
}

/// Loads the model, runs a first step, and starts its engine.
///
/// # Errors
/// When the checkpoint holds something that is not supported or memory runs out.
pub(crate) fn start_engine(
    model: &OpenedModel,
    options: ServeOptions,
) -> Result<StartedModel, CommandError> {
    let ServeOptions { mut plan, isa, num_threads, idle_release, .. } = options;
    let checkpoint = &model.checkpoint;
    let max_model_len = plan.engine.max_model_len;
    let names = if options.names.is_empty() { vec![model.name.clone()] } else { options.names };
    let source = CpuAdapters { config: checkpoint.config().clone(), isa };
    let adapters = Adapters::new(Box::new(source), options.adapter_folder);
    load_adapters(&adapters, &options.adapters, &names)?;
    let stored_keys = match plan.layout.dtype {
        KvDtype::Int8 => StoredKeys::WithoutLargeBiases,
        KvDtype::F32 | KvDtype::F16 | KvDtype::Bf16 => StoredKeys::Whole,
    };
    let ops = CpuOps::new(isa, num_threads).with_stored_keys(stored_keys);
    // A large vocabulary takes one thread as long as a small model's weights take all.
    let (texts, transformer) = std::thread::scope(|scope| {
        let texts = scope.spawn(|| ModelTexts::load(model, options.chat_template));
        let transformer = load_weights(checkpoint, ops, max_model_len);
        (texts.join().unwrap_or_else(|panic| resume_unwind(panic)), transformer)
    });
    let (texts, transformer) = (texts?, transformer?);
    let tokenizer = Arc::new(texts.tokenizer);
    let template = texts.chat_template;
    let served = ServedModel {
        names,
        adapters,
        output_format: options.output_parsers.format(template.as_ref(), &tokenizer),
        chat_template: template,
        max_model_len,
        vocab_size: checkpoint.config().vocab_size,
        embeddings: EmbeddingShape {
            pooling: options.pooling.choose(checkpoint.config().pooling),
            hidden_size: checkpoint.config().hidden_size,
        },
        grammars: start_grammars(&tokenizer, &texts.stop_token_ids, num_threads)?,
        stop_token_ids: texts.stop_token_ids,
        tokenizer,
        details: model_details::of(model),
    };
    let tiers = options.tiers.open(model, &plan)?;
    let monitor = tiers.as_ref().map(TierStack::monitor);
    plan.engine.content_hash = tiers.as_ref().map(|_| content_key as ContentHash);
    let num_block_ids = u32::try_from(plan.engine.num_block_ids()).unwrap_or(u32::MAX);
    let kv = KvStorage::reserve(plan.layout, num_block_ids)
        .map_err(CommandError::system("reserve the KV pool"))?;
    let mut executor = ModelExecutor::new(transformer, kv);
    if let Some(tiers) = tiers {
        executor = executor.with_tier(Box::new(tiers));
    }
    warm_up(&mut executor, &plan)?;
    let engine = Engine::new(plan.engine, executor, SystemClock::new());
    let engine = engine.map_err(CommandError::Engine)?;
    let has_tiers = monitor.is_some();
    let thread = EngineThreadConfig {
        idle_release,
        idle_keep_blocks: if has_tiers { 0 } else { plan.engine.num_blocks / IDLE_KEEP_DIVISOR },
        idle_slice_blocks: u32::try_from(IDLE_SLICE_BYTES / plan.layout.block_bytes()).unwrap_or(1),
        idle_slice_pause: if has_tiers { TIER_PAUSE } else { Duration::ZERO },
    };
    let engine = EngineHandle::spawn(engine, thread)
        .map_err(CommandError::system("start the engine thread"))?;
    let kv = KvDetails {
        block_bytes: Some(plan.layout.block_bytes() as u64),
        tiers: monitor.map(kv_tier::source),
    };
    Ok(StartedModel { served, engine, kv })
}

/// Starts what compiles grammars and computes their masks.
fn start_grammars(
    tokenizer: &Arc<Tokenizer>,
    stop_token_ids: &[TokenId],
    num_threads: NonZeroUsize,
) -> Result<Arc<Grammars>, CommandError> {
    let num_mask_threads = num_threads.get().div_ceil(COMPUTE_PER_MASK_THREAD);
    let grammars = Grammars::new(Arc::clone(tokenizer), stop_token_ids.to_vec(), num_mask_threads);
    grammars.map(Arc::new).map_err(CommandError::system("start the threads of grammars"))
}

/// Loads the adapters of the command line.
fn load_adapters(
    adapters: &Adapters,
    named: &[NamedAdapter],
    names: &[String],
) -> Result<(), CommandError> {
    for NamedAdapter { name, folder } in named {
        let failed = |message| CommandError::Adapter { name: name.clone(), message };
        if names.contains(name) {
            return Err(failed("this is the name of the model itself".to_owned()));
        }
        adapters.load(name, folder).map_err(failed)?;
    }
    Ok(())
}

/// Loads the weights and shows how far that is.
fn load_weights(
    checkpoint: &Checkpoint,
    ops: CpuOps,
    max_model_len: u32,
) -> Result<Transformer<CpuOps>, ModelError> {
    let mut progress = LoadProgress::new(checkpoint.weight_bytes());
    let mut report = |loaded_bytes| progress.report(loaded_bytes);
    Transformer::load_reporting(checkpoint, ops, max_model_len as usize, &mut report)
}

/// What a checkpoint says about texts.
struct ModelTexts {
    tokenizer: Tokenizer,
    chat_template: Option<ChatTemplate>,
    /// Tokens that end an answer.
    stop_token_ids: Vec<TokenId>,
}

impl ModelTexts {
    /// Reads them; the template from `template_file` where that is given.
    fn load(model: &OpenedModel, template_file: Option<PathBuf>) -> Result<Self, CommandError> {
        let tokenizer = load_tokenizer(model)?;
        let vocab_size = model.checkpoint.config().vocab_size;
        let stop_token_ids = match model.checkpoint.gguf_metadata() {
            Some(_) => tokenizer.stop_token_ids().to_vec(),
            None => folder_text::stop_token_ids(&model.path, &tokenizer, vocab_size)?,
        };
        let chat_template = load_template(model, template_file, &tokenizer)?;
        Ok(Self { tokenizer, chat_template, stop_token_ids })
    }
}

fn load_tokenizer(model: &OpenedModel) -> Result<Tokenizer, CommandError> {
    match model.checkpoint.gguf_metadata() {
        Some(metadata) => {
            let vocabulary = gguf_text::vocabulary(metadata)?;
            Tokenizer::from_gguf(vocabulary).map_err(CommandError::Tokenizer)
        }
        None => folder_text::tokenizer(&model.path),
    }
}

fn load_template(
    model: &OpenedModel,
    file: Option<PathBuf>,
    tokenizer: &Tokenizer,
) -> Result<Option<ChatTemplate>, CommandError> {
    let source = match (file, model.checkpoint.gguf_metadata()) {
        (Some(path), _) => {
            let unreadable = |source| CommandError::ChatTemplateFile { path: path.clone(), source };
            Some(read_to_string(&path).map_err(unreadable)?)
        }
        (None, Some(metadata)) => gguf_text::chat_template(metadata)?.map(str::to_owned),
        (None, None) => folder_text::chat_template(&model.path)?,
    };
    let template = source.map(|source| ChatTemplate::new(&source, tokenizer));
    template.transpose().map_err(CommandError::ChatTemplate)
}

/// Computes one token in the first block, which no sequence holds yet: touches every weight, so
/// that the first request finds them in memory.
fn warm_up(executor: &mut impl Executor, plan: &MemoryPlan) -> Result<(), CommandError> {
    let mut batch = Batch::default();
    batch.push_sequence(&[0], 0, &[BlockId(0)], plan.engine.block_size, true);
    executor.forward(&batch, &mut Vec::new()).map_err(CommandError::WarmUp)
}
