//! `servebench mock-server`.

use crate::error::ServebenchError;
use crate::mock_server::{MockConfig, MockServer};
use crate::output;
use clap::Args;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct MockServerArgs {
    /// Port to listen on; 0 takes any that is free
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// Address to listen on
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    #[command(flatten)]
    config: MockConfig,
}

pub(crate) fn run(args: &MockServerArgs) -> Result<ExitCode, ServebenchError> {
    args.config.check().map_err(|error| ServebenchError::Usage {
        flag: format!("--{}", error.setting.replace('_', "-")),
        message: format!("is {}, expected {}", error.value, error.expected),
    })?;
    let address = SocketAddr::new(args.host, args.port);
    let unusable = |source: std::io::Error| ServebenchError::Server {
        url: format!("http://{address}"),
        message: format!("cannot listen there ({source}); choose another --port"),
    };
    let server = MockServer::start_at(address, args.config.clone()).map_err(unusable)?;
    output::line(format!(
        "Mock server at {} (model {}): first token after {} ms, then one every {} ms. Ctrl-C stops \
         it.",
        server.url(),
        args.config.model,
        args.config.ttft_ms,
        args.config.itl_ms
    ));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(unusable)?;
    runtime.block_on(tokio::signal::ctrl_c()).map_err(unusable)?;
    Ok(ExitCode::SUCCESS)
}
