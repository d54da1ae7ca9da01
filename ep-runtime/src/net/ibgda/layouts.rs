//! The structs of `sys` against the C headers: numbers that were read there, and the headers themselves where
//! they are installed.

use std::fmt::Write;
use std::io::Write as _;
use std::mem::offset_of;
use std::process::{Command, Stdio};

use super::sys::*;

/// What C calls a member, the number that was read, and ours: offsets, and sizes where no member is named.
/// A size of ours counts no room for what newer libraries write.
fn places() -> Vec<(&'static str, usize, usize)> {
    vec![
        ("ibv_port_attr.state", 0, offset_of!(PortAttr, state)),
        ("ibv_port_attr.active_mtu", 8, offset_of!(PortAttr, active_mtu)),
        ("ibv_port_attr.gid_tbl_len", 12, offset_of!(PortAttr, gid_tbl_len)),
        ("ibv_port_attr.lid", 34, offset_of!(PortAttr, lid)),
        ("ibv_port_attr.link_layer", 46, offset_of!(PortAttr, link_layer)),
        ("ibv_port_attr.flags", 47, offset_of!(PortAttr, flags)),
        ("ibv_device_attr.max_qp_rd_atom", 144, offset_of!(DeviceAttr, max_qp_rd_atom)),
        ("ibv_device_attr.max_qp_init_rd_atom", 156, offset_of!(DeviceAttr, max_qp_init_rd_atom)),
        ("ibv_device_attr.max_srq_sge", 220, offset_of!(DeviceAttr, max_srq_sge)),
        ("ibv_device_attr.phys_port_cnt", 227, offset_of!(DeviceAttr, phys_port_cnt)),
        ("ibv_device_attr", 232, offset_of!(DeviceAttr, later)),
        ("ibv_gid_entry.gid_type", 24, offset_of!(GidEntry, gid_type)),
        ("ibv_gid_entry", 32, size_of::<GidEntry>()),
        ("ibv_mr.lkey", 36, offset_of!(IbMr, lkey)),
        ("ibv_mr.rkey", 40, offset_of!(IbMr, rkey)),
        ("ibv_ah_attr.grh.sgid_index", 20, offset_of!(AhAttr, sgid_index)),
        ("ibv_ah_attr.grh.hop_limit", 21, offset_of!(AhAttr, hop_limit)),
        ("ibv_ah_attr.dlid", 24, offset_of!(AhAttr, dlid)),
        ("ibv_ah_attr.is_global", 29, offset_of!(AhAttr, is_global)),
        ("ibv_ah_attr.port_num", 30, offset_of!(AhAttr, port_num)),
        ("ibv_ah_attr", 32, size_of::<AhAttr>()),
        ("mlx5dv_context_attr", 16, size_of::<ContextAttr>()),
        ("mlx5dv_devx_umem.umem_id", 0, offset_of!(DevxUmem, umem_id)),
        ("mlx5dv_devx_uar.reg_addr", 0, offset_of!(DevxUar, reg_addr)),
        ("mlx5dv_devx_uar.page_id", 16, offset_of!(DevxUar, page_id)),
        ("mlx5dv_obj.ah", 80, offset_of!(Objects, ah)),
        ("mlx5dv_obj.pd", 96, offset_of!(Objects, pd)),
        ("mlx5dv_obj", 112, offset_of!(Objects, later)),
        ("mlx5dv_pd", 16, offset_of!(FilledPd, later)),
        ("mlx5dv_ah", 16, offset_of!(FilledAh, later)),
        ("mlx5_wqe_av.rmac", 20, offset_of!(AddressVector, rmac)),
        ("mlx5_wqe_av.rgid", 32, offset_of!(AddressVector, rgid)),
        ("mlx5_wqe_av", 48, size_of::<AddressVector>()),
    ]
}

#[test]
fn structs_are_those_of_the_headers() {
    for (name, read, ours) in places() {
        assert_eq!(ours, read, "{name}");
    }
}

/// Compiles assertions about the headers, where there are any.
#[test]
fn the_headers_of_this_machine_say_the_same() {
    let mut text = "#include <infiniband/verbs.h>\n#include <infiniband/mlx5dv.h>\n".to_string();
    for (name, read, _) in places() {
        let _ = match name.split_once('.') {
            Some((owner, member)) => {
                writeln!(text, "static_assert(offsetof({owner}, {member}) == {read}, \"{name}\");")
            }
            None => writeln!(text, "static_assert(sizeof({name}) == {read}, \"{name}\");"),
        };
    }
    let numbers = [
        ("IBV_PORT_ACTIVE", u64::from(PORT_ACTIVE)),
        ("IBV_LINK_LAYER_INFINIBAND", LINK_INFINIBAND.into()),
        ("IBV_LINK_LAYER_ETHERNET", LINK_ETHERNET.into()),
        ("IBV_GID_TYPE_ROCE_V2", GID_ROCE_V2.into()),
        ("IBV_ACCESS_LOCAL_WRITE", ACCESS_LOCAL_WRITE.into()),
        ("IBV_ACCESS_REMOTE_WRITE", ACCESS_REMOTE_WRITE.into()),
        ("IBV_ACCESS_REMOTE_ATOMIC", ACCESS_REMOTE_ATOMIC.into()),
        ("IBV_ACCESS_RELAXED_ORDERING", ACCESS_RELAXED_ORDERING.into()),
        ("MLX5DV_CONTEXT_FLAGS_DEVX", CONTEXT_DEVX.into()),
        ("MLX5DV_OBJ_AH", OBJECT_AH),
        ("MLX5DV_OBJ_PD", OBJECT_PD),
        ("MLX5DV_UAR_ALLOC_TYPE_NC", REGISTER_PAGES[1].into()),
        ("MLX5DV_UAR_ALLOC_TYPE_BF", REGISTER_PAGES[2].into()),
    ];
    for (name, ours) in numbers {
        let _ = writeln!(text, "static_assert({name} == {ours}, \"{name}\");");
    }
    let program = |text: &str| {
        let mut child = Command::new("c++")
            .args(["-x", "c++", "-std=c++17", "-fsyntax-only", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        child.stdin.take()?.write_all(text.as_bytes()).ok()?;
        child.wait_with_output().ok()
    };
    let there = "#if !__has_include(<infiniband/mlx5dv.h>)\n#error none\n#endif\n";
    if !program(there).is_some_and(|output| output.status.success()) {
        let _ = writeln!(std::io::stderr(), "skipped: no headers of libibverbs and libmlx5");
        return;
    }
    let output = program(&text).expect("it ran before");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
