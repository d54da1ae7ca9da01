//! The extension module `epforge._core`: the typed calls of `ep-runtime` for the Python package around it.
//!
//! It knows addresses, strides and streams. What tensors, process groups and autograd are is said in
//! Python, so that the package needs none of the libraries that have them. A call that may wait lets other
//! Python threads run meanwhile.

#![cfg(target_os = "linux")]

mod arguments;
mod buffer;
mod dlpack;
mod errors;
mod group;
mod local_layout;
mod low_latency;
mod offered;
mod per_rank;
mod results;
mod spread;
mod tensor;

use pyo3::prelude::*;

/// The typed calls on addresses; `epforge` has them on tensors.
#[pymodule]
mod _core {
    #[pymodule_export]
    use super::buffer::Buffer;
    #[pymodule_export]
    use super::dlpack::{Looks, Taken, take_dlpack};
    #[pymodule_export]
    use super::group::{Group, UniqueId, gpus};
    #[pymodule_export]
    use super::local_layout::LayoutKernel;
    #[pymodule_export]
    use super::low_latency::{LowLatencyCombiner, LowLatencyDispatcher, Pending};
    #[pymodule_export]
    use super::offered::Offered;
    #[pymodule_export]
    use super::per_rank::{PerRankKernels, PerRankSent};
    #[pymodule_export]
    use super::results::{Expander, Handle, Received};
    #[pymodule_export]
    use super::run_command;
    #[pymodule_export]
    use super::spread::SpreadKernel;
    #[pymodule_export]
    use super::tensor::Tensor;

    use pyo3::prelude::*;

    /// Adds the classes of errors.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::errors::add(module)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

/// Runs the command line `epforge`, the program's name first, and gives its exit code.
#[pyfunction]
fn run_command(py: Python<'_>, arguments: Vec<String>) -> PyResult<u8> {
    errors::released(py, || {
        let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr().lock());
        Ok(ep_cli::run(arguments, &ep_runtime::pipelines::ALL, &mut out, &mut err))
    })
}
