//! libibverbs and libmlx5, opened at run time, and the meaning of their errors.

use std::error::Error;
use std::ffi::{c_int, c_void};
use std::io;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::command::{Answer, Command};
use super::sys::Api;
use crate::jit::Search;
use crate::net_error::NetError;

/// The names under which they are installed.
const FILES: [&str; 2] = ["libibverbs.so.1", "libmlx5.so.1"];

/// The two libraries. A process loads them once and keeps them until it ends.
pub struct Verbs {
    pub(super) folder: PathBuf,
    pub(super) api: Api,
}

/// Those of this process.
static LOADED: Mutex<Option<&'static Verbs>> = Mutex::new(None);

impl Verbs {
    /// The libraries of this machine, loaded by the first call that finds them.
    pub fn find() -> Result<&'static Verbs, NetError> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(verbs) = *loaded {
            return Ok(verbs);
        }
        let mut tried = Vec::new();
        for folder in Search::from_environment().system {
            if FILES.iter().any(|file| !folder.join(file).is_file()) {
                continue;
            }
            match Verbs::load(&folder) {
                Ok(verbs) => return Ok(loaded.insert(Box::leak(Box::new(verbs)))),
                Err(why) => tried.push(format!("{}: {why}", folder.display())),
            }
        }
        let mut why =
            "there is no libibverbs with libmlx5: install them (the packages libibverbs1 and \
                       ibverbs-providers), or name their folder in LD_LIBRARY_PATH"
                .to_string();
        if !tried.is_empty() {
            why.push_str(&format!("; {}", tried.join("; ")));
        }
        Err(NetError::NoLibrary { why })
    }

    /// The folder of the libraries.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the libraries register a dma-buf.
    pub fn takes_dma_buf(&self) -> bool {
        self.api.reg_dmabuf_mr.is_some()
    }

    pub(super) fn load(folder: &Path) -> Result<Verbs, String> {
        let open = |file: &str| {
            // SAFETY: the folder is one of the system, or one that the user named to the loader; the
            // initialisers are those of rdma-core.
            let library = unsafe { Library::open(Some(folder.join(file)), RTLD_NOW | RTLD_LOCAL) };
            library.map_err(|error| match error.source() {
                Some(source) => source.to_string(),
                None => error.to_string(),
            })
        };
        let [verbs, mlx5] = [open(FILES[0])?, open(FILES[1])?];
        let api = resolve(&verbs, &mlx5)?;
        // They keep threads and handlers at exit: they stay until the process ends.
        std::mem::forget((verbs, mlx5));
        Ok(Verbs { folder: folder.to_owned(), api })
    }
}

/// Looks up all functions.
fn resolve(verbs: &Library, mlx5: &Library) -> Result<Api, String> {
    macro_rules! symbol {
        ($library:ident, $name:literal) => {{
            // SAFETY: the declared type is that of the function in the headers of rdma-core.
            let found = unsafe { $library.get($name) };
            *found.map_err(|_| {
                let name = $name.escape_ascii();
                format!("it has no `{name}`, which rdma-core 33 and newer have")
            })?
        }};
    }
    Ok(Api {
        get_device_list: symbol!(verbs, b"ibv_get_device_list"),
        free_device_list: symbol!(verbs, b"ibv_free_device_list"),
        get_device_name: symbol!(verbs, b"ibv_get_device_name"),
        open_device: symbol!(verbs, b"ibv_open_device"),
        close_device: symbol!(verbs, b"ibv_close_device"),
        query_device: symbol!(verbs, b"ibv_query_device"),
        query_port: symbol!(verbs, b"ibv_query_port"),
        query_gid_ex: symbol!(verbs, b"_ibv_query_gid_ex"),
        alloc_pd: symbol!(verbs, b"ibv_alloc_pd"),
        dealloc_pd: symbol!(verbs, b"ibv_dealloc_pd"),
        reg_mr_iova2: symbol!(verbs, b"ibv_reg_mr_iova2"),
        // SAFETY: as above.
        reg_dmabuf_mr: unsafe { verbs.get(b"ibv_reg_dmabuf_mr") }.ok().map(|found| *found),
        dereg_mr: symbol!(verbs, b"ibv_dereg_mr"),
        create_ah: symbol!(verbs, b"ibv_create_ah"),
        destroy_ah: symbol!(verbs, b"ibv_destroy_ah"),
        is_supported: symbol!(mlx5, b"mlx5dv_is_supported"),
        open_mlx5: symbol!(mlx5, b"mlx5dv_open_device"),
        init_obj: symbol!(mlx5, b"mlx5dv_init_obj"),
        general_cmd: symbol!(mlx5, b"mlx5dv_devx_general_cmd"),
        obj_create: symbol!(mlx5, b"mlx5dv_devx_obj_create"),
        obj_modify: symbol!(mlx5, b"mlx5dv_devx_obj_modify"),
        obj_destroy: symbol!(mlx5, b"mlx5dv_devx_obj_destroy"),
        umem_reg: symbol!(mlx5, b"mlx5dv_devx_umem_reg"),
        umem_dereg: symbol!(mlx5, b"mlx5dv_devx_umem_dereg"),
        alloc_uar: symbol!(mlx5, b"mlx5dv_devx_alloc_uar"),
        free_uar: symbol!(mlx5, b"mlx5dv_devx_free_uar"),
        query_eqn: symbol!(mlx5, b"mlx5dv_devx_query_eqn"),
    })
}

/// A device by its name, for errors of calls on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Called<'a>(pub(super) &'a str);

impl Called<'_> {
    /// What a call has made, which is nothing where it fails.
    pub(super) fn made<T>(self, call: &'static str, made: *mut T) -> Result<NonNull<T>, NetError> {
        let code = || io::Error::last_os_error().raw_os_error().unwrap_or(0);
        NonNull::new(made).ok_or_else(|| self.error(call, code(), None))
    }

    /// A call that returns a code: of the system, or less than 0 where that is in `errno`.
    pub(super) fn done(self, call: &'static str, code: c_int) -> Result<(), NetError> {
        match code {
            0 => Ok(()),
            -1 => {
                let code = io::Error::last_os_error().raw_os_error().unwrap_or(0);
                Err(self.error(call, code, None))
            }
            code => Err(self.error(call, code.saturating_abs(), None)),
        }
    }

    /// Sends a command to the firmware of the card; `send` gets both buffers with their bytes, and returns
    /// a code.
    pub(super) fn ask(
        self,
        command: &Command,
        mut answer: Answer,
        send: impl FnOnce(*const c_void, usize, *mut c_void, usize) -> c_int,
    ) -> Result<Answer, NetError> {
        let (asked, room) = (command.bytes(), answer.room());
        let code = send(asked.as_ptr().cast(), asked.len(), room.as_mut_ptr().cast(), room.len());
        match code {
            0 if answer.status() == 0 => Ok(answer),
            0 => Err(self.error(command.name(), libc::EREMOTEIO, Some(&answer))),
            -1 => {
                let code = io::Error::last_os_error().raw_os_error().unwrap_or(0);
                Err(self.error(command.name(), code, Some(&answer)))
            }
            code => Err(self.error(command.name(), code.saturating_abs(), Some(&answer))),
        }
    }

    /// A call that the libraries or the system do not have.
    pub(super) fn lacks(self, call: &'static str) -> NetError {
        self.error(call, libc::EOPNOTSUPP, None)
    }

    /// The error of a call with the system's sentence, the firmware's numbers, and what to do.
    fn error(self, call: &'static str, code: c_int, answer: Option<&Answer>) -> NetError {
        let mut why = match code {
            0 => "it made nothing and gave no reason".to_string(),
            code => io::Error::from_raw_os_error(code).to_string(),
        };
        if let Some(answer) = answer.filter(|answer| answer.status() != 0) {
            let (status, syndrome) = (answer.status(), answer.syndrome());
            why.push_str(&format!(", status {status:#x}, syndrome {syndrome:#x}"));
        }
        why.push_str(&format!("; {}", advice(call, code)));
        NetError::Card { call, device: self.0.to_string(), why }
    }
}

/// What to do about a failure.
fn advice(call: &str, code: c_int) -> &'static str {
    match (call, code) {
        (_, libc::ENOSYS) => {
            "the kernel has no RDMA devices: load the modules ib_uverbs and mlx5_ib"
        }
        ("ibv_create_ah", _) => "see whether the peer's address answers a ping from this port",
        (_, libc::ENOMEM) => "raise the limit of locked memory (`ulimit -l unlimited`)",
        (_, libc::EPERM | libc::EACCES) => "let the process use the devices in /dev/infiniband",
        ("mlx5dv_open_device", _) => {
            "the kernel driver and the firmware must know DEVX: use MLNX_OFED or Linux 5.1 and newer"
        }
        ("ibv_reg_dmabuf_mr", _) => {
            "load nvidia_peermem, or keep rows in host memory (`CardOptions::rows_on_host`)"
        }
        _ => "`dmesg` may show messages of the card's driver",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_said_with_its_reason_and_what_to_do() {
        let card = Called("mlx5_0:1");
        let text = "ibv_alloc_pd failed on mlx5_0:1: Cannot allocate memory (os error 12); raise the limit \
                    of locked memory (`ulimit -l unlimited`)";
        assert_eq!(card.done("ibv_alloc_pd", libc::ENOMEM).unwrap_err().to_string(), text);
        assert_eq!(card.done("ibv_alloc_pd", -libc::ENOMEM).unwrap_err().to_string(), text);
        let error = card.done("mlx5dv_open_device", libc::EOPNOTSUPP).unwrap_err().to_string();
        assert!(error.contains("must know DEVX"), "{error}");
        let command = Command::new("CREATE_QP", 0x500, 16);
        let refused = card.ask(&command, Answer::new(16), |_, _, answer, bytes| {
            // SAFETY: the answer has so many bytes.
            let answer = unsafe { std::slice::from_raw_parts_mut(answer.cast::<u8>(), bytes) };
            answer[0] = 3;
            answer[4..8].copy_from_slice(&[0, 0, 0x12, 0x34]);
            libc::EREMOTEIO
        });
        let text = "CREATE_QP failed on mlx5_0:1: Remote I/O error (os error 121), status 0x3, syndrome \
                    0x1234; `dmesg` may show messages of the card's driver";
        assert_eq!(refused.unwrap_err().to_string(), text);
    }

    #[test]
    fn libraries_that_are_none_are_named() {
        let error = Verbs::load(Path::new("/no/such/folder")).err().unwrap();
        assert!(error.contains("/no/such/folder/libibverbs.so.1"), "{error}");
    }
}
