//! Rows between GPUs by way of host memory: as nodes of one rank each, which share GPUs if need be.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ep_runtime::gpu;
use ep_runtime::net::Provider;

use crate::exchange::Exchange;
use crate::host::{LONG, can_use};
use crate::processes::Processes;

/// The GPUs, for one test at a time; where there is none the tests are skipped.
pub(crate) fn turn() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    if gpu::devices().is_ok_and(|devices| !devices.is_empty()) {
        // What failed before leaves nothing behind.
        return Some(TURN.lock().unwrap_or_else(PoisonError::into_inner));
    }
    let _ = writeln!(std::io::stderr(), "skipped: no GPU");
    None
}

#[test]
fn rows_come_over_as_they_were() {
    let Some(_turn) = turn() else { return };
    for provider in [Provider::Shm, Provider::Tcp] {
        for (ranks, rows, words) in [(2, 200, 1856), (4, 33, 5)] {
            if can_use(provider) {
                let shape = Exchange { ranks, rows, words, ..Exchange::over(provider) };
                let exchange = Exchange { rounds: 40, on_gpus: true, ..shape };
                let ended = Processes::start(&exchange).wait(LONG);
                assert_eq!(ended, vec![Ok(0); ranks], "{provider}, {ranks} ranks");
            }
        }
    }
}

#[test]
fn a_rank_that_dies_is_named() {
    let Some(_turn) = turn().filter(|_| can_use(Provider::Shm)) else { return };
    let silence = Duration::from_secs(2);
    let endless = Exchange { rounds: 1 << 30, silence, ..Exchange::over(Provider::Shm) };
    let exchange = Exchange { on_gpus: true, ..endless };
    let mut processes = Processes::start(&exchange);
    processes.wait_until_running();
    processes.signal(1, libc::SIGKILL);
    let error = processes.wait(LONG)[0].clone().expect_err("rank 1 is dead");
    assert!(error.starts_with("rank 0 has") && error.contains("rank 1"), "{error}");
}
