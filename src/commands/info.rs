//! `mini-infer info`: this machine, and what serving a model would take.
//!
//! Fetches nothing and loads no weights. The plan is computed by the code that `serve` uses.

use crate::assemble::{open_model, plan_memory};
use crate::byte_size::ByteSize;
use crate::cli::InfoArgs;
use crate::config::EngineSettings;
use crate::error::CommandError;
use crate::machine::Machine;
use crate::output;
use crate::speed_bounds::{self, ModelWork};
use mini_infer_hub::{DEFAULT_ALIAS, HubError, HubOptions, Network, NoProgress};
use mini_infer_kernels::{Isa, MachineLimits};
use std::num::NonZeroUsize;

/// Prints the machine, and the memory plan of the model that was asked for, or of the default
/// one if it is here.
///
/// # Errors
/// When the model is not on this disk or its plan does not fit.
pub(crate) fn run(args: &InfoArgs) -> Result<(), CommandError> {
    let settings = EngineSettings::new(&args.engine, &args.kv)?;
    let machine = Machine::detect();
    let isa = Isa::from_env().map_err(CommandError::Isa)?;
    print_machine(&machine, isa);
    let limits = measure(args, &machine)?;
    limits.iter().flat_map(speed_bounds::describe).for_each(output::line);
    let options = HubOptions { network: Network::Offline, ..HubOptions::from_env()? };
    let name = args.model.as_deref().unwrap_or(DEFAULT_ALIAS);
    let model = match (open_model(name, args.loading, &options, &mut NoProgress), &args.model) {
        (Ok(model), _) => model,
        (Err(CommandError::Hub(HubError::Offline { .. })), asked) => {
            if let Some(model) = asked {
                return Err(CommandError::NotFetched { model: model.clone() });
            }
            output::line(format!("\nno model in the cache yet; `mini-infer pull` fetches {name}"));
            return Ok(());
        }
        (Err(error), _) => return Err(error),
    };
    let plan = plan_memory(&settings, &model, &machine)?;
    output::line(format!("\nmodel            {} ({})", model.name, model.path.display()));
    plan.describe().iter().for_each(output::line);
    if let Some(limits) = &limits {
        ModelWork::of(&model.checkpoint).describe(limits).iter().for_each(output::line);
    }
    Ok(())
}

/// Measures the machine where that was asked for.
fn measure(args: &InfoArgs, machine: &Machine) -> Result<Option<MachineLimits>, CommandError> {
    if !args.measure {
        return Ok(None);
    }
    let asked = args.engine.threads.and_then(|threads| NonZeroUsize::new(threads.into()));
    let limits = MachineLimits::measure(asked.unwrap_or(machine.num_cores));
    limits.map(Some).map_err(CommandError::system("measure this machine"))
}

fn print_machine(machine: &Machine, isa: Isa) {
    let size = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), |b| ByteSize(b).to_string());
    let present: Vec<_> = Isa::all_present().into_iter().map(Isa::name).collect();
    output::line(format!("cores            {} physical", machine.num_cores));
    output::line(format!("instruction set  {} (present: {})", isa.name(), present.join(", ")));
    let memory = machine.memory;
    output::line(format!(
        "memory           {}, {} available",
        size(memory.total_bytes),
        size(memory.available_bytes)
    ));
    if let Some(limit_bytes) = memory.limit_bytes {
        output::line(format!("container limit  {}", ByteSize(limit_bytes)));
    }
}
