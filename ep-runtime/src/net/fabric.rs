//! libfabric, opened at run time: what it offers for each provider.

use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::Search;
use super::find;
use super::provider::{Offer, Provider};
use super::signals;
use super::sys::{self, Api, Info};
use crate::net_error::NetError;

/// The oldest one that was tried.
const OLDEST: (u32, u32) = (1, 17);

/// Writes land in the order in which they were posted: `FI_ORDER_WAW` and `FI_ORDER_RMA_WAW`.
const WRITES_IN_ORDER: u64 = 1 << 4 | 1 << 35;

/// Bytes of an immediate that every provider but the emulated ones carries.
pub(super) const IMMEDIATE_BYTES: usize = 4;

/// A loaded libfabric. A process loads at most one and keeps it until it ends.
pub struct Fabric {
    path: PathBuf,
    version: (u32, u32),
    pub(super) api: Api,
}

/// The libfabric of this process.
static LOADED: Mutex<Option<&'static Fabric>> = Mutex::new(None);

impl Fabric {
    /// The libfabric of this machine, loaded by the first call that finds one.
    pub fn find() -> Result<&'static Fabric, NetError> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fabric) = *loaded {
            return Ok(fabric);
        }
        let search = Search::from_environment();
        let mut tried = search.distrusted();
        for path in find::libraries(&search) {
            match Fabric::load(&path) {
                Ok(fabric) => return Ok(loaded.insert(Box::leak(Box::new(fabric)))),
                Err(why) => tried.push(format!("{}: {why}", path.display())),
            }
        }
        let mut why =
            "there is no libfabric: install it (the package libfabric1), run `cargo xtask \
                       setup`, or name one in EPFORGE_LIBFABRIC"
                .to_string();
        if !tried.is_empty() {
            why.push_str(&format!("; {}", tried.join("; ")));
        }
        Err(NetError::NoLibrary { why })
    }

    fn load(path: &Path) -> Result<Fabric, String> {
        // SAFETY: the library is one that the user named or that only this user and the system can have
        // put there; its initialisers are those of libfabric.
        let open = || unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = signals::kept(open);
        let library = library.map_err(|error| match error.source() {
            Some(source) => source.to_string(),
            None => error.to_string(),
        })?;
        macro_rules! symbol {
            ($name:literal) => {{
                // SAFETY: the declared type is that of the function in libfabric's headers.
                let found = unsafe { library.get($name) };
                *found.map_err(|_| format!("it has no `{}`", $name.escape_ascii()))?
            }};
        }
        let api = Api {
            version: symbol!(b"fi_version"),
            getinfo: symbol!(b"fi_getinfo"),
            freeinfo: symbol!(b"fi_freeinfo"),
            dupinfo: symbol!(b"fi_dupinfo"),
            fabric: symbol!(b"fi_fabric"),
            strerror: symbol!(b"fi_strerror"),
        };
        // SAFETY: the call takes nothing.
        let version = unsafe { (api.version)() };
        let version = (version >> 16, version & 0xffff);
        if version < OLDEST {
            let ((have, minor), (need, oldest)) = (version, OLDEST);
            return Err(format!(
                "its version is {have}.{minor}, and {need}.{oldest} or newer is needed"
            ));
        }
        // Its providers keep threads and handlers at exit: it stays until the process ends.
        std::mem::forget(library);
        Ok(Fabric { path: path.to_owned(), version, api })
    }

    /// Path of the library.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Version of the library.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The library's offers for a provider, best first; at least one. `source`: an address of the machine
    /// that selects the device.
    pub fn offers(
        &'static self,
        provider: Provider,
        source: Option<&str>,
    ) -> Result<Vec<Offer>, NetError> {
        let on_gpus = self.list(provider, source, true).map(|list| list.offers());
        let on_gpus = on_gpus.unwrap_or_default();
        let mut offers = self.list(provider, source, false)?.offers();
        for offer in &mut offers {
            let same =
                |other: &Offer| (&other.stack, &other.device) == (&offer.stack, &offer.device);
            offer.gpu_memory = on_gpus.iter().any(same);
        }
        offers.dedup();
        Ok(offers)
    }

    /// The offers for the first stack that has any, as the library lists them.
    pub(super) fn list(
        &'static self,
        provider: Provider,
        source: Option<&str>,
        gpu_memory: bool,
    ) -> Result<InfoList, NetError> {
        let mut why = String::new();
        for stack in provider.stacks() {
            match self.ask(stack, source, gpu_memory) {
                Ok(list) if list.has_any() => return Ok(list),
                Ok(_) => {}
                Err(said) => why = said,
            }
        }
        if why.is_empty() {
            why = "none can carry a number of 4 bytes with a write".to_string();
        }
        Err(NetError::NoProvider { provider: provider.name(), why })
    }

    fn ask(
        &'static self,
        stack: &'static str,
        source: Option<&str>,
        gpu_memory: bool,
    ) -> Result<InfoList, String> {
        let name = CString::new(stack).map_err(|error| error.to_string())?;
        let source = source.map(CString::new).transpose().map_err(|error| error.to_string())?;
        let hints = Hints::new(self)?;
        let mut head = ptr::null_mut();
        // SAFETY: `hints` is a fresh info with all its parts, which it owns and which nobody else knows;
        // the name is copied by the C allocator, which frees it with the info. The call reads the strings
        // and writes one pointer.
        let ask = || unsafe {
            let info = &mut *hints.info;
            info.caps = sys::CAP_MSG | sys::CAP_RMA | sys::CAP_WRITE | sys::CAP_REMOTE_WRITE;
            info.mode = sys::MODE_CONTEXT | sys::MODE_CONTEXT2;
            (*info.ep).kind = sys::EP_RDM;
            let domain = &mut *info.domain;
            domain.threading = sys::THREAD_DOMAIN;
            domain.mr_mode = sys::MR_LOCAL
                | sys::MR_VIRT_ADDR
                | sys::MR_ALLOCATED
                | sys::MR_PROV_KEY
                | sys::MR_ENDPOINT;
            if gpu_memory {
                info.caps |= sys::CAP_HMEM;
                domain.mr_mode |= sys::MR_HMEM;
            }
            (*info.fabric).prov_name = libc::strdup(name.as_ptr());
            let api = (self.api.version)().min(sys::KNOWN_API);
            let (node, flags) =
                source.as_ref().map_or((ptr::null(), 0), |node| (node.as_ptr(), sys::SOURCE));
            (self.api.getinfo)(api, node, ptr::null(), flags, info, &mut head)
        };
        // The first one loads libraries of cards.
        match signals::kept(ask) {
            0 => Ok(InfoList { fabric: self, head, stack }),
            code => Err(format!("{stack}: {}", self.words(code as isize))),
        }
    }

    /// The library's words for a code.
    pub(super) fn words(&self, code: isize) -> String {
        // SAFETY: the library returns a text of its own for every number.
        let text = unsafe { (self.api.strerror)(code.unsigned_abs() as c_int) };
        format!("{} ({code})", text_at(text))
    }

    /// Turns a code of the library into an error.
    #[inline]
    pub(super) fn check(&self, call: &'static str, code: isize) -> Result<(), NetError> {
        match code {
            0.. => Ok(()),
            code => Err(self.refusal(call, code)),
        }
    }

    #[cold]
    fn refusal(&self, call: &'static str, code: isize) -> NetError {
        NetError::Call { call, why: self.words(code) }
    }
}

/// What is asked for.
struct Hints {
    fabric: &'static Fabric,
    info: *mut Info,
}

impl Hints {
    fn new(fabric: &'static Fabric) -> Result<Hints, String> {
        // SAFETY: a copy of nothing is how an empty info is made.
        let info = unsafe { (fabric.api.dupinfo)(ptr::null()) };
        if info.is_null() { Err("no memory".to_string()) } else { Ok(Hints { fabric, info }) }
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        // SAFETY: `new` made it, and it is not used any more.
        unsafe { (self.fabric.api.freeinfo)(self.info) }
    }
}

/// A list of offers that the library made.
pub(super) struct InfoList {
    pub(super) fabric: &'static Fabric,
    head: *mut Info,
    stack: &'static str,
}

impl InfoList {
    /// Those of the stack that was asked for, which can carry an immediate.
    fn fitting(&self) -> impl Iterator<Item = *mut Info> + '_ {
        let mut next = self.head;
        let all = std::iter::from_fn(move || {
            // SAFETY: the library links live infos and ends with null; they live as long as `self`.
            let info = unsafe { next.as_ref()? };
            Some(std::mem::replace(&mut next, info.next))
        });
        // SAFETY: an info of `getinfo` has all its parts.
        all.filter(|info| unsafe {
            let (domain, fabric) = (&*(**info).domain, &*(**info).fabric);
            text_at(fabric.prov_name) == self.stack && domain.cq_data_size >= IMMEDIATE_BYTES
        })
    }

    fn has_any(&self) -> bool {
        self.fitting().next().is_some()
    }

    /// The best one.
    pub(super) fn first(&self) -> Option<*mut Info> {
        self.fitting().next()
    }

    fn offers(&self) -> Vec<Offer> {
        let offer = |info: *mut Info| {
            // SAFETY: an info of `getinfo` has all its parts, and they live as long as `self`.
            let (domain, fabric, tx) =
                unsafe { (&*(*info).domain, &*(*info).fabric, &*(*info).tx) };
            Offer {
                stack: text_at(fabric.prov_name),
                device: text_at(domain.name),
                version: (fabric.prov_version >> 16, fabric.prov_version & 0xffff),
                immediate_bytes: domain.cq_data_size,
                in_flight: tx.size,
                ordered: tx.msg_order & WRITES_IN_ORDER != 0,
                gpu_memory: false,
            }
        };
        self.fitting().map(offer).collect()
    }
}

impl Drop for InfoList {
    fn drop(&mut self) {
        if !self.head.is_null() {
            // SAFETY: `getinfo` made the list, and it is not used any more.
            unsafe { (self.fabric.api.freeinfo)(self.head) }
        }
    }
}

/// A text of the library; `-` where there is none.
pub(super) fn text_at(text: *const c_char) -> String {
    if text.is_null() {
        return "-".to_string();
    }
    // SAFETY: texts of the library end with a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
