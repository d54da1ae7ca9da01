//! Captured work: CUDA graphs, and the objects that they keep alive.

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::sys;

use super::driver::check;
use crate::backend::{BackendError, Capture, Captured, Kept};

/// A capture that is going on: its number and its graph.
pub(super) struct Open {
    pub(super) capture: Capture,
    graph: sys::CUgraph,
}

/// The capture that `stream` is part of.
pub(super) fn of(rank: usize, stream: sys::CUstream) -> Result<Option<Open>, BackendError> {
    use sys::CUstreamCaptureStatus as Status;
    let mut status = Status::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut number, mut graph) = (0, ptr::null_mut());
    // SAFETY: writes a status, a number and a handle; the three null outputs are optional. The stream
    // is the rank's own, or the caller vouched for it in `Stream::from_raw`.
    let result = unsafe {
        let (edges, nodes, count) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        sys::cuStreamGetCaptureInfo_v3(
            stream,
            &mut status,
            &mut number,
            &mut graph,
            nodes,
            edges,
            count,
        )
    };
    check("cuStreamGetCaptureInfo", Some(rank), result)?;
    match status {
        Status::CU_STREAM_CAPTURE_STATUS_NONE => Ok(None),
        Status::CU_STREAM_CAPTURE_STATUS_ACTIVE => {
            Ok(Some(Open { capture: Capture(number), graph }))
        }
        _ => {
            let what = format!("the capture of a stream of rank {rank} has failed: end it");
            Err(BackendError::Wrong { what })
        }
    }
}

/// Begins to capture what the calling thread puts into `stream`.
pub(super) fn begin(rank: usize, stream: sys::CUstream) -> Result<(), BackendError> {
    // Other threads may go on allocating and waiting: they serve other ranks.
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream as in `of`.
    check("cuStreamBeginCapture", Some(rank), unsafe { sys::cuStreamBeginCapture_v2(stream, mode) })
}

/// Ends the capture, and makes what was captured ready to launch.
pub(super) fn end(rank: usize, stream: sys::CUstream) -> Result<Captured, BackendError> {
    let mut graph = ptr::null_mut();
    // SAFETY: writes one handle; the stream as in `of`.
    let result = unsafe { sys::cuStreamEndCapture(stream, &mut graph) };
    check("cuStreamEndCapture", Some(rank), result)?;
    let mut runnable = ptr::null_mut();
    // SAFETY: the graph was just made. What it keeps is now kept by the instance as well, so that the
    // graph itself is needed no more.
    let result = unsafe {
        let result = sys::cuGraphInstantiateWithFlags(&mut runnable, graph, 0);
        let _ = sys::cuGraphDestroy(graph);
        result
    };
    check("cuGraphInstantiate", Some(rank), result)?;
    // Without it the first launch would bring the graph to the device, and may wait for memory there
    // while other ranks already wait for that launch (M8).
    // SAFETY: the instance was just made; the stream as in `of`. Where this fails the launch does it.
    let _ = unsafe { sys::cuGraphUpload(runnable, stream) };
    Ok(Captured(runnable as u64))
}

/// Launches what was captured.
pub(super) fn replay(
    rank: usize,
    stream: sys::CUstream,
    captured: &Captured,
) -> Result<(), BackendError> {
    // SAFETY: only `end` makes it, and it is alive since it is borrowed; the stream as in `of`.
    let result = unsafe { sys::cuGraphLaunch(captured.0 as sys::CUgraphExec, stream) };
    check("cuGraphLaunch", Some(rank), result)
}

/// Destroys what was captured; the driver lets go of what it keeps when the last launch is done.
pub(super) fn destroy(rank: usize, captured: Captured) -> Result<(), BackendError> {
    // SAFETY: only `end` makes it, it cannot be copied, and this consumes it.
    let result = unsafe { sys::cuGraphExecDestroy(captured.0 as sys::CUgraphExec) };
    check("cuGraphExecDestroy", Some(rank), result)
}

/// The calling thread may give memory back and wait while others capture streams, until this is dropped.
pub(super) struct Relaxed(sys::CUstreamCaptureMode);

/// Lets the calling thread do what would end a capture elsewhere.
pub(super) fn relaxed() -> Relaxed {
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    exchange(&mut mode);
    Relaxed(mode)
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        exchange(&mut self.0);
    }
}

fn exchange(mode: &mut sys::CUstreamCaptureMode) {
    // SAFETY: reads and writes one value of this thread. It fails for no mode that there is.
    let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(mode) };
}

/// Keeps something for as long as the graph of a capture, or anything instantiated from it, can run.
pub(super) fn keep(rank: usize, open: &Open, kept: Kept) -> Result<(), BackendError> {
    let no_sync = sys::CUuserObject_flags_enum::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
    let hand_over = sys::CUuserObjectRetain_flags_enum::CU_GRAPH_USER_OBJECT_MOVE as u32;
    let boxed: *mut Kept = Box::into_raw(Box::new(kept));
    let mut object = ptr::null_mut();
    // SAFETY: writes one handle; the driver calls `let_go` once with `boxed`, which nothing else uses.
    let result =
        unsafe { sys::cuUserObjectCreate(&mut object, boxed.cast(), Some(let_go), 1, no_sync) };
    if let Err(error) = check("cuUserObjectCreate", Some(rank), result) {
        // SAFETY: the driver has not taken it.
        drop(unsafe { Box::from_raw(boxed) });
        return Err(error);
    }
    // SAFETY: the graph belongs to a capture that is going on; our one reference goes to it.
    let result = unsafe { sys::cuGraphRetainUserObject(open.graph, object, 1, hand_over) };
    if let Err(error) = check("cuGraphRetainUserObject", Some(rank), result) {
        // SAFETY: the reference is still ours; giving it back calls `let_go`.
        let _ = unsafe { sys::cuUserObjectRelease(object, 1) };
        return Err(error);
    }
    Ok(())
}

/// Drops what a graph kept. The driver calls it on a thread of its own that may make no driver calls,
/// while dropping a buffer frees memory: so another thread does it.
unsafe extern "C" fn let_go(kept: *mut c_void) {
    let address = kept as usize;
    // Without a thread the memory is lost, which is better than a deadlock in the driver.
    let _ = std::thread::Builder::new().name("ep-let-go".to_string()).spawn(move || {
        // SAFETY: the address is that of a box made in `keep`, which the driver passes once.
        drop(unsafe { Box::from_raw(address as *mut Kept) });
    });
}
