//! `servebench top`.

use crate::detect;
use crate::error::ServebenchError;
use crate::top::{self, Display, TopOptions};
use clap::Args;
use std::io::{IsTerminal, stdin, stdout};
use std::process::ExitCode;
use std::time::Duration;

/// Longest time that a flag may give, in seconds: a year.
const MOST_SECONDS: f64 = 365.0 * 86_400.0;

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Base URL of the API, such as http://127.0.0.1:8000/v1; without it, the first local server
    #[arg(long, short)]
    url: Option<String>,
    /// API key, where the server wants one
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Seconds between two looks at the server, from 0.05
    #[arg(long, short, value_name = "SECONDS", default_value = "0.5", value_parser = refresh)]
    refresh: Duration,
    /// Stop after so many seconds
    #[arg(long, short, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Print a line for each look, as happens anyway when the output is no terminal
    #[arg(long)]
    inline: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected seconds, such as 0.5".to_owned())?;
    if !(seconds > 0.0 && seconds <= MOST_SECONDS) {
        return Err("expected more than 0 seconds and at most a year".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn refresh(text: &str) -> Result<Duration, String> {
    let refresh = seconds(text)?;
    if refresh < Duration::from_millis(50) {
        return Err("expected at least 0.05 seconds, or looking would be a load".to_owned());
    }
    Ok(refresh)
}

pub(crate) fn run(args: &TopArgs) -> Result<ExitCode, ServebenchError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("the system starts a thread");
    let is_terminal = stdin().is_terminal() && stdout().is_terminal();
    let display = if args.inline || !is_terminal { Display::Lines } else { Display::Screen };
    runtime.block_on(async {
        let url = match &args.url {
            Some(url) => url.clone(),
            None => first_local_server().await?,
        };
        top::watch(TopOptions {
            url,
            api_key: args.api_key.clone(),
            refresh: args.refresh,
            duration: args.duration,
            display,
        })
        .await
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn first_local_server() -> Result<String, ServebenchError> {
    let found = detect::find_local().await.into_iter().next();
    found.map(|server| server.url).ok_or_else(|| {
        let ports = detect::KNOWN_PORTS.map(|(port, name)| format!("{port} ({name})")).join(", ");
        let message = format!("no server answers on the usual ports: {ports}; pass --url");
        ServebenchError::Usage { flag: "--url".to_owned(), message }
    })
}
