//! The cards of a machine: their ports, and an open card for commands of our own.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::net::Ipv6Addr;
use std::ptr::NonNull;

use super::library::{Called, Verbs};
use super::nearest::Seat;
use super::sys::{self, ContextAttr, DeviceAttr, Gid, GidEntry, IbContext, IbDevice, PortAttr};
use crate::net_error::NetError;

/// Places of GIDs that a command can name.
const GIDS_MAX: u32 = 256;

/// A port of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardPort {
    /// The device and its port, such as `mlx5_0:1`.
    pub name: String,
    /// Whether the card has queues that kernels can write to.
    pub is_mlx5: bool,
    /// `InfiniBand` or `Ethernet`.
    pub link: &'static str,
    /// The state, such as `active`.
    pub state: &'static str,
    /// How peers reach the port, or why they cannot.
    pub path: Result<String, &'static str>,
}

impl fmt::Display for CardPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CardPort { name, is_mlx5, link, state, path } = self;
        let kind = if *is_mlx5 { "" } else { ", no mlx5 card" };
        let path = path.as_deref().unwrap_or_else(|why| why);
        write!(f, "{name}: {link}, {state}, {path}{kind}")
    }
}

/// A port that a rank uses, as its card names it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Port {
    pub(super) number: u8,
    pub(super) is_ethernet: bool,
    pub(super) lid: u16,
    /// As the card writes it: 1 is 256 bytes, and each next one twice that.
    pub(super) mtu: u8,
    pub(super) gid: Gid,
    pub(super) gid_index: u8,
}

/// An open device and one port of it.
pub(super) struct Device {
    context: Context,
    /// Device and port.
    pub(super) name: String,
    pub(super) port: Port,
    /// Atomics of peers that it carries out at once, and those that it asks peers for, as powers of two.
    pub(super) log_atomics: (u8, u8),
}

/// The more a card holds of atomics under way, the fewer fit elsewhere.
const LOG_ATOMICS_MAX: u8 = 4;

/// The devices that a library lists.
struct DeviceList {
    verbs: &'static Verbs,
    list: NonNull<*mut IbDevice>,
    count: usize,
}

impl DeviceList {
    fn new(verbs: &'static Verbs) -> Result<DeviceList, NetError> {
        let mut count: c_int = 0;
        // SAFETY: the call writes one number, and returns a list of so many devices.
        let list = unsafe { (verbs.api.get_device_list)(&mut count) };
        let list = Called("this machine").made("ibv_get_device_list", list)?;
        Ok(DeviceList { verbs, list, count: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> impl Iterator<Item = (*mut IbDevice, String)> + '_ {
        (0..self.count).map(|index| {
            // SAFETY: the list has so many devices, which live as long as it; a name is a text of the library.
            unsafe {
                let device = *self.list.as_ptr().add(index);
                let name = (self.verbs.api.get_device_name)(device);
                let name =
                    if name.is_null() { c"a device without a name" } else { CStr::from_ptr(name) };
                (device, name.to_string_lossy().into_owned())
            }
        })
    }

    fn is_mlx5(&self, device: *mut IbDevice) -> bool {
        // SAFETY: the device is one of the list.
        unsafe { (self.verbs.api.is_supported)(device) }
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the library made the list, and it is not used any more.
        unsafe { (self.verbs.api.free_device_list)(self.list.as_ptr()) }
    }
}

/// A context that is closed when it is dropped.
struct Context {
    verbs: &'static Verbs,
    made: NonNull<IbContext>,
}

// SAFETY: the libraries let any thread use and close a context.
unsafe impl Send for Context {}

impl Context {
    fn attributes(&self, name: &str) -> Result<DeviceAttr, NetError> {
        // SAFETY: all members may be zero, and the call fills a struct whose room holds that of newer libraries.
        let (code, attributes) = unsafe {
            let mut attributes: DeviceAttr = std::mem::zeroed();
            ((self.verbs.api.query_device)(self.made.as_ptr(), &mut attributes), attributes)
        };
        Called(name).done("ibv_query_device", code).map(|()| attributes)
    }

    fn port(&self, name: &str, port: u8) -> Result<PortAttr, NetError> {
        let mut attributes = PortAttr::default();
        // SAFETY: as in `attributes`.
        let code =
            unsafe { (self.verbs.api.query_port)(self.made.as_ptr(), port, &mut attributes) };
        Called(name).done("ibv_query_port", code).map(|()| attributes)
    }

    /// The GIDs of a port, each with its place.
    fn gids(
        &self,
        name: &str,
        port: u8,
        attributes: &PortAttr,
    ) -> Result<Vec<(u8, GidEntry)>, NetError> {
        let count = u32::try_from(attributes.gid_tbl_len).unwrap_or(0).min(GIDS_MAX);
        let mut entries = Vec::new();
        for index in 0..count {
            let mut entry = GidEntry::default();
            // SAFETY: the call fills an entry of the size that it is told.
            let code = unsafe {
                let (context, bytes) = (self.made.as_ptr(), size_of::<GidEntry>());
                (self.verbs.api.query_gid_ex)(context, port.into(), index, &mut entry, 0, bytes)
            };
            // A place may be empty.
            if code != libc::ENODATA {
                Called(name).done("_ibv_query_gid_ex", code)?;
                entries.push((index as u8, entry));
            }
        }
        Ok(entries)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was opened by the library and is closed once.
        let _ = unsafe { (self.verbs.api.close_device)(self.made.as_ptr()) };
    }
}

/// The GID by which peers reach a port, with its place.
fn chosen(entries: &[(u8, GidEntry)], port: &PortAttr) -> Result<(u8, Gid), &'static str> {
    let (best, why) = match port.link_layer {
        sys::LINK_INFINIBAND => (entries.first(), "it has no GID: does a subnet manager run?"),
        _ => {
            let routed = entries.iter().filter(|(_, entry)| entry.gid_type == sys::GID_ROCE_V2);
            let best = routed.min_by_key(|(index, entry)| (preference(&entry.gid), *index));
            (best, "it has no address for RoCE v2: give its network interface an IP address")
        }
    };
    best.map(|(index, entry)| (*index, entry.gid)).ok_or(why)
}

/// IPv4 before IPv6, and what is known beyond the link before what is not.
fn preference(gid: &Gid) -> u8 {
    let address = Ipv6Addr::from(gid.0);
    match address.to_ipv4_mapped() {
        Some(_) => 0,
        None if address.segments()[0] & 0xffc0 != 0xfe80 => 1,
        None => 2,
    }
}

fn link(port: &PortAttr) -> &'static str {
    match port.link_layer {
        sys::LINK_INFINIBAND => "InfiniBand",
        sys::LINK_ETHERNET => "Ethernet",
        _ => "an unknown link",
    }
}

fn state(port: &PortAttr) -> &'static str {
    match port.state {
        1 => "down",
        2 => "initializing",
        3 => "armed",
        sys::PORT_ACTIVE => "active",
        _ => "in no known state",
    }
}

/// All ports of all devices, for people to read; the error of a device stands in the place of its ports.
pub(super) fn ports(verbs: &'static Verbs) -> Result<Vec<Result<CardPort, NetError>>, NetError> {
    let list = DeviceList::new(verbs)?;
    let mut all = Vec::new();
    for (device, name) in list.devices() {
        match ports_of(verbs, (device, &name), list.is_mlx5(device)) {
            Ok(ports) => all.extend(ports.into_iter().map(Ok)),
            Err(error) => all.push(Err(error)),
        }
    }
    Ok(all)
}

fn ports_of(
    verbs: &'static Verbs,
    (device, name): (*mut IbDevice, &str),
    is_mlx5: bool,
) -> Result<Vec<CardPort>, NetError> {
    // SAFETY: the device is one of a live list.
    let made = unsafe { (verbs.api.open_device)(device) };
    let made = Called(name).made("ibv_open_device", made)?;
    let context = Context { verbs, made };
    let mut ports = Vec::new();
    for number in 1..=context.attributes(name)?.phys_port_cnt {
        let name = format!("{name}:{number}");
        let port = context.port(&name, number)?;
        let entries = context.gids(&name, number, &port)?;
        let path = chosen(&entries, &port).map(|(index, gid)| match port.link_layer {
            sys::LINK_INFINIBAND => format!("LID {}", port.lid),
            _ => format!("GID {index} ({})", Ipv6Addr::from(gid.0)),
        });
        ports.push(CardPort { name, is_mlx5, link: link(&port), state: state(&port), path });
    }
    Ok(ports)
}

/// What a rank asks for.
struct Wanted<'a> {
    device: Option<&'a str>,
    port: Option<u8>,
}

impl<'a> Wanted<'a> {
    fn new(named: Option<&'a str>) -> Result<Wanted<'a>, NetError> {
        let (device, port) = match named.map(|name| name.split_once(':').unwrap_or((name, ""))) {
            None => (None, None),
            Some((device, "")) => (Some(device), None),
            Some((device, port)) => match port.parse() {
                Ok(port) => (Some(device), Some(port)),
                Err(_) => {
                    let why =
                        format!("`{device}:{port}` names no card: `mlx5_0` and `mlx5_0:1` do");
                    return Err(NetError::NoCard { why });
                }
            },
        };
        Ok(Wanted { device, port })
    }
}

impl Device {
    /// A port for each of `named`, as [`Device::open`] chooses it. No port comes twice.
    pub(super) fn open_all(
        verbs: &'static Verbs,
        named: &[Option<&str>],
        seat: &Seat,
    ) -> Result<Vec<Device>, NetError> {
        let mut opened = Vec::new();
        for named in named {
            let next = Device::open(verbs, *named, seat, &opened)?;
            opened.push(next);
        }
        Ok(opened)
    }

    /// The first active port of the device that is `named`, or of the mlx5 card nearest to `seat` that has any, beside those
    /// that are `taken`.
    pub(super) fn open(
        verbs: &'static Verbs,
        named: Option<&str>,
        seat: &Seat,
        taken: &[Device],
    ) -> Result<Device, NetError> {
        let wanted = Wanted::new(named)?;
        let list = DeviceList::new(verbs)?;
        let (devices, names): (Vec<_>, Vec<_>) = list.devices().unzip();
        let mut seen = Vec::new();
        for at in seat.order(&names) {
            let (device, name) = (devices[at], &names[at]);
            if wanted.device.is_some_and(|wanted| wanted != *name) {
                continue;
            }
            match list.is_mlx5(device) {
                false => seen.push(format!("{name} is no mlx5 card")),
                true => match Device::of(verbs, (device, name), (wanted.port, taken), &mut seen)? {
                    Some(opened) => return Ok(opened),
                    None => continue,
                },
            }
        }
        let whose =
            named.map_or_else(|| "no mlx5 card".to_string(), |name| format!("no card `{name}`"));
        let mut why = format!("there is {whose} with an active port");
        if !seen.is_empty() {
            why.push_str(&format!(": {}", seen.join(", ")));
        }
        Err(NetError::NoCard { why })
    }

    /// None: no port of it is active, which is noted.
    fn of(
        verbs: &'static Verbs,
        (device, name): (*mut IbDevice, &str),
        (wanted, taken): (Option<u8>, &[Device]),
        seen: &mut Vec<String>,
    ) -> Result<Option<Device>, NetError> {
        let mut asked = ContextAttr { flags: sys::CONTEXT_DEVX, comp_mask: 0 };
        // SAFETY: the device is one of a live list; the call reads the attributes.
        let made = unsafe { (verbs.api.open_mlx5)(device, &mut asked) };
        let made = Called(name).made("mlx5dv_open_device", made)?;
        let context = Context { verbs, made };
        let attributes = context.attributes(name)?;
        for number in 1..=attributes.phys_port_cnt {
            let name = format!("{name}:{number}");
            let port = context.port(&name, number)?;
            if wanted.is_some_and(|wanted| wanted != number) {
                continue;
            }
            if taken.iter().any(|taken| taken.name == name) {
                seen.push(format!("{name} is the rank's already"));
                continue;
            }
            if port.state != sys::PORT_ACTIVE {
                seen.push(format!("{name} is {}", state(&port)));
                continue;
            }
            let gid = chosen(&context.gids(&name, number, &port)?, &port);
            let (gid_index, gid) = gid
                .map_err(|why| NetError::NoCard { why: format!("{name} cannot be used: {why}") })?;
            let port = Port {
                number,
                is_ethernet: port.link_layer != sys::LINK_INFINIBAND,
                lid: port.lid,
                mtu: u8::try_from(port.active_mtu).unwrap_or(0),
                gid,
                gid_index,
            };
            let log = |count: c_int| {
                let count = u32::try_from(count).ok().and_then(u32::checked_ilog2).unwrap_or(0);
                LOG_ATOMICS_MAX.min(count as u8)
            };
            let log_atomics = (log(attributes.max_qp_rd_atom), log(attributes.max_qp_init_rd_atom));
            return Ok(Some(Device { context, name, port, log_atomics }));
        }
        Ok(None)
    }

    pub(super) fn verbs(&self) -> &'static Verbs {
        self.context.verbs
    }

    /// As the library knows it.
    pub(super) fn context(&self) -> *mut IbContext {
        self.context.made.as_ptr()
    }

    /// By its name, for the errors of calls.
    pub(super) fn called(&self) -> Called<'_> {
        Called(&self.name)
    }
}
