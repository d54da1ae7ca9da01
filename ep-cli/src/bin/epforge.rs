//! The `epforge` command for the standard pipelines.

fn main() -> std::process::ExitCode {
    ep_cli::main(&ep_runtime::pipelines::ALL)
}
