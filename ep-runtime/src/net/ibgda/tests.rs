//! Every call that opens and joins cards, in order, and every one of them failing; against the double.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::command::{self, Field, NUMBER, OPCODE, cq, qp};
use super::double::{self, ETHERNET, INFINIBAND, IPV4, LOCAL, MAC, begin, double};
use super::*;
use crate::fake::{FakeBackend, REGISTERS_ARE_BEHIND};
use crate::join::{Member, UniqueId};

const LAYOUT: Layout =
    Layout { ranks: 2, data_bytes: 1000, queues: 2, slots: 64, counters: 8, ports: 1 };

fn options() -> CardOptions {
    let kind = CardOptions { service_level: 3, traffic_class: 106, ..CardOptions::new(1000) };
    CardOptions { queues: 2, slots: 64, counters: 8, ..kind }
}

fn any(backend: &Arc<FakeBackend>) -> Arc<dyn Backend> {
    Arc::clone(backend) as Arc<dyn Backend>
}

/// What is open still, and what went wrong.
fn left() -> (Vec<&'static str>, Vec<String>) {
    double(|it| (it.open.iter().map(|object| object.call).collect(), it.wrong.clone()))
}

/// The cards of a rank, opened; they are the first ones of this thread.
fn opened_for(
    backend: &Arc<FakeBackend>,
    rank: usize,
    verbs: &'static Verbs,
    layout: Layout,
) -> Result<Opened, NetError> {
    let open = || Device::open_all(verbs, &vec![None; layout.ports], &Seat::default());
    Opened::new(&any(backend), rank, (layout, rank), &options(), open)
}

fn opened(
    backend: &Arc<FakeBackend>,
    rank: usize,
    verbs: &'static Verbs,
) -> Result<Opened, NetError> {
    opened_for(backend, rank, verbs, LAYOUT)
}

/// Both ranks, joined; their tables.
fn joined_for(
    backend: &Arc<FakeBackend>,
    verbs: &'static Verbs,
    layout: Layout,
) -> Result<([Opened; 2], [Vec<u8>; 2]), NetError> {
    let both = [opened_for(backend, 0, verbs, layout)?, opened_for(backend, 1, verbs, layout)?];
    let end =
        |rank: usize| CardEnd::decode(&both[rank].end(), layout.ports, 2 * layout.queues).unwrap();
    let others = [[None, Some(end(1))], [Some(end(0)), None]];
    for rank in 0..2 {
        both[rank].connect(&others[rank])?;
    }
    let tables = [0, 1].map(|rank: usize| both[rank].table(&others[rank]));
    Ok((both, tables))
}

fn joined(
    backend: &Arc<FakeBackend>,
    verbs: &'static Verbs,
) -> Result<([Opened; 2], [Vec<u8>; 2]), NetError> {
    joined_for(backend, verbs, LAYOUT)
}

/// The commands of a kind so far.
fn commands((_, opcode): (&str, u16)) -> Vec<Vec<u8>> {
    double(|it| {
        let of = |asked: &&Vec<u8>| OPCODE.read(asked) == u64::from(opcode);
        it.commands.iter().filter(of).cloned().collect()
    })
}

fn word(table: &[u8], pair: usize, at: usize) -> u64 {
    u64::from_le_bytes(table[128 * pair + at..][..8].try_into().unwrap())
}

fn half(table: &[u8], pair: usize, at: usize) -> u64 {
    u64::from(u32::from_le_bytes(table[128 * pair + at..][..4].try_into().unwrap()))
}

#[test]
fn kernels_are_told_what_the_card_was_told() {
    let verbs = begin(|_| {});
    let backend = FakeBackend::new(2);
    let (both, tables) = joined(&backend, verbs).unwrap();
    let (pairs, completions) = (commands(command::CREATE_QP), commands(command::CREATE_CQ));
    assert_eq!((pairs.len(), completions.len()), (4, 4));
    let keys = |region: u64| [0x1000 + region, 0x2000 + region];
    for rank in 0..2 {
        let (own, there) = (&both[rank], &both[1 - rank]);
        for queue in 0..2 {
            let (pair, asked) = (2 * (1 - rank) + queue, 2 * rank + queue);
            let read = |field: Field| field.read(&pairs[asked]);
            let of_completions = |field: Field| field.read(&completions[asked]);
            let table = &tables[rank];
            let queues = own.queues.address;
            assert_eq!(word(table, pair, 0), queues + read(qp::UMEM_AT));
            assert_eq!(word(table, pair, 8), queues + of_completions(cq::UMEM_AT) + 60);
            assert_eq!(word(table, pair, 16), queues + read(qp::RECORD_AT) + 4);
            assert_eq!(word(table, pair, 24), 0x7000_0800 + REGISTERS_ARE_BEHIND);
            assert_eq!(word(table, pair, 32), there.rows.address);
            let first = CardPlaces(LAYOUT).counters(rank, queue);
            assert_eq!(word(table, pair, 40), there.rows.address + first);
            let before = CardPlaces(LAYOUT).before(1 - rank, queue);
            assert_eq!(word(table, pair, 48), own.rows.address + before);
            let [own_data, _] = keys(2 * rank as u64 + 1);
            let [own_counters, _] = keys(2 * rank as u64 + 2);
            let [_, data] = keys(2 * (1 - rank as u64) + 1);
            let [_, counters] = keys(2 * (1 - rank as u64) + 2);
            let told = [64, 68, 72, 76].map(|at| half(table, pair, at));
            assert_eq!(told, [data, counters, own_data, own_counters]);
            let number = own.pair(1 - rank, queue).unwrap().number;
            assert_eq!([80, 84].map(|at| half(table, pair, at)), [number.into(), 0]);
            assert_eq!(word(table, pair, 56), 0);
            assert_eq!(read(qp::CQ_SENT), read(qp::CQ_RECEIVED));
        }
        assert!(tables[rank][256 * rank..][..256].iter().all(|byte| *byte == 0), "none to itself");
    }
}

#[test]
fn queues_are_made_as_kernels_use_them() {
    let verbs = begin(|_| {});
    let backend = FakeBackend::new(2);
    let _both = joined(&backend, verbs).unwrap();
    for asked in commands(command::CREATE_CQ) {
        let expected = [
            (cq::COLLAPSED, 1),
            (cq::MAY_OVERRUN, 1),
            (cq::LOG_SIZE, 6),
            (cq::REGISTER_PAGE, 0x66),
            (cq::EVENTS, 9),
            (cq::UMEM, 0x55),
            (cq::UMEM_VALID, 1),
            (cq::RECORD_UMEM, 0x55),
            (cq::RECORD_UMEM_VALID, 1),
            (cq::LOG_PAGE_BYTES, 0),
        ];
        expected.into_iter().for_each(|(field, number)| assert_eq!(field.read(&asked), number));
        assert_eq!(cq::UMEM_AT.read(&asked) % 4096, 0, "queues begin with a page");
    }
    for asked in commands(command::CREATE_QP) {
        let expected = [
            (qp::LOG_SLOTS, 6),
            (qp::RECEIVES, 3),
            (qp::DOMAIN, 0x77),
            (qp::REGISTER_PAGE, 0x66),
            (qp::PATH_STATE, 3),
            (qp::UMEM, 0x55),
            (qp::UMEM_VALID, 1),
            (qp::RECORD_UMEM, 0x55),
            (qp::RECORD_UMEM_VALID, 1),
        ];
        expected.into_iter().for_each(|(field, number)| assert_eq!(field.read(&asked), number));
        assert_eq!(qp::UMEM_AT.read(&asked) % 4096, 0, "queues begin with a page");
    }
}

/// The numbers of queue pairs as they were made.
fn numbers(both: &[Opened; 2], rank: usize) -> Vec<u64> {
    (0..2).map(|queue| both[rank].pair(1 - rank, queue).unwrap().number.into()).collect()
}

#[test]
fn pairs_are_joined_over_ethernet() {
    let verbs = begin(|_| {});
    let backend = FakeBackend::new(2);
    let (both, _) = joined(&backend, verbs).unwrap();
    let own = [numbers(&both, 0), numbers(&both, 1)].concat();
    let theirs = [numbers(&both, 1), numbers(&both, 0)].concat();
    let inits = commands(command::RST2INIT_QP);
    assert_eq!(inits.iter().map(|it| NUMBER.read(it)).collect::<Vec<_>>(), own);
    for asked in &inits {
        let expected = [
            (qp::TAKES_WRITES, 1),
            (qp::TAKES_ATOMICS, 1),
            (qp::ATOMIC_MODE, 3),
            (qp::PORT, 1),
            (qp::PATH_STATE, 3),
        ];
        expected.into_iter().for_each(|(field, number)| assert_eq!(field.read(asked), number));
    }
    for (index, asked) in commands(command::INIT2RTR_QP).iter().enumerate() {
        let expected = [
            (NUMBER, own[index]),
            (qp::PEER, theirs[index]),
            (qp::MTU, 5),
            (qp::LOG_MESSAGE_BYTES, 30),
            (qp::LOG_ATOMICS_TAKEN, 4),
            (qp::NOT_READY_TIMER, 12),
            (qp::OWN_GID, 3),
            (qp::HOPS, 255),
            (qp::GLOBAL, 0),
            (qp::LID, 0),
            (qp::UDP_PORT, 0xc000 | own[index] ^ theirs[index]),
            (qp::TRAFFIC_CLASS, 106),
            (qp::DSCP, 26),
            (qp::PRIORITY, 3),
            (qp::SERVICE_LEVEL, 0),
        ];
        expected.into_iter().for_each(|(field, number)| assert_eq!(field.read(asked), number));
        // The path begins at byte 48; the GID is 16 bytes into it, and the MAC behind 38.
        assert_eq!((&asked[48 + 16..48 + 32], &asked[48 + 38..48 + 44]), (&IPV4[..], &MAC[..]));
    }
    assert_eq!(double(|it| it.asked_ways.clone()), [IPV4; 4]);
    for (index, asked) in commands(command::RTR2RTS_QP).iter().enumerate() {
        // It asks for at most as many atomics as its peer carries out, of those that it can itself.
        let expected = [
            (NUMBER, own[index]),
            (qp::LOG_ATOMICS_SENT, 3),
            (qp::RETRIES, 7),
            (qp::NOT_READY_RETRIES, 7),
            (qp::ACK_TIMEOUT, 20),
        ];
        expected.into_iter().for_each(|(field, number)| assert_eq!(field.read(asked), number));
    }
}

#[test]
fn pairs_are_joined_over_infiniband() {
    let verbs = begin(|it| it.ports = vec![INFINIBAND]);
    let backend = FakeBackend::new(2);
    let (both, _) = joined(&backend, verbs).unwrap();
    for asked in commands(command::INIT2RTR_QP) {
        let expected = [
            (qp::LID, 0x31),
            (qp::GLOBAL, 0),
            (qp::MTU, 4),
            (qp::UDP_PORT, 0),
            (qp::SERVICE_LEVEL, 3),
            (qp::PRIORITY, 0),
        ];
        expected.into_iter().for_each(|(field, number)| assert_eq!(field.read(&asked), number));
    }
    assert!(double(|it| it.asked_ways.is_empty()), "LIDs need no way");
    // A peer of another subnet is reached by its GID, and the smaller MTU holds.
    let mut far = both[1].card_end();
    (far.ports[0].gid[0], far.ports[0].mtu) = (0x20, 2);
    both[0].connect(&[None, Some(far.clone())]).unwrap();
    let asked = commands(command::INIT2RTR_QP).pop().unwrap();
    let expected = [(qp::GLOBAL, 1), (qp::MTU, 2), (qp::OWN_GID, 0), (qp::HOPS, 255)];
    expected.into_iter().for_each(|(field, number)| assert_eq!(field.read(&asked), number));
    assert_eq!(asked[48 + 16..48 + 32], far.ports[0].gid);
}

/// Each call fails once; what was opened before is closed, and the error names the call and the card.
#[test]
fn whatever_call_fails_nothing_is_left() {
    for port in [ETHERNET, INFINIBAND] {
        let mut failed = Vec::new();
        let mut all = usize::MAX;
        for call in 0.. {
            if call >= all {
                break;
            }
            let verbs = begin(|it| (it.ports, it.fails) = (vec![port], Some(call)));
            let backend = FakeBackend::new(2);
            let error = joined(&backend, verbs).map(drop).err();
            assert_eq!((left(), backend.live()), ((vec![], vec![]), 0), "call {call}, {error:?}");
            let asked = backend.asked();
            let count = |what: &str| asked.iter().filter(|it| **it == what).count();
            assert_eq!(count("map registers"), count("unmap registers"), "call {call}");
            let Some(name) = double(|it| it.failed) else {
                // What closes cannot fail.
                assert_eq!(error, None, "call {call}");
                all = double(|it| it.calls.len());
                continue;
            };
            failed.push(name);
            let said = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(said.contains(&format!("{name} failed on ")), "{name}: {said}");
        }
        failed.sort_unstable();
        failed.dedup();
        let ways = if port.link == INFINIBAND.link { 0 } else { 1 };
        assert_eq!(failed.len(), 17 + ways, "{failed:?}");
    }
}

#[test]
fn registers_that_kernels_cannot_reach_are_given_back() {
    let verbs = begin(|_| {});
    let backend = FakeBackend::new(2);
    backend.maps_registers.store(false, Ordering::Relaxed);
    let error = joined(&backend, verbs).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "registers stay where they are");
    assert_eq!((left(), backend.live()), ((vec![], vec![]), 0));
}

#[test]
fn rows_are_where_the_card_reaches_them() {
    let all = [RowsOn::Host, RowsOn::GpuByPeerMemory, RowsOn::GpuByDmaBuf];
    for (access, on) in all.into_iter().enumerate() {
        let verbs = begin(|_| {});
        let backend = FakeBackend::new(2);
        backend.card_access.store(access as u32, Ordering::Relaxed);
        let opened = opened(&backend, 0, verbs).unwrap();
        assert_eq!(opened.rows.on, on);
        let regions = double(|it| it.regions.clone());
        let address = opened.rows.address;
        let parts = [(address, 65536, 1 | 2 | 8 | 1 << 20), (address + 65536, 65536, 1 | 2 | 8)];
        assert_eq!(regions.iter().map(|it| (it.2, it.1, it.3)).collect::<Vec<_>>(), parts);
        match on {
            RowsOn::GpuByDmaBuf => assert_eq!((regions[0].0, regions[1].0), (0, 0)),
            RowsOn::GpuByPeerMemory => assert_eq!(regions[1].0, address + 65536),
            RowsOn::Host => {
                assert_eq!((regions[0].0 % 65536, regions[1].0), (0, regions[0].0 + 65536));
            }
        }
        drop(opened);
        let host = CardOptions { rows_on_host: true, ..options() };
        let open = || Device::open_all(verbs, &[None], &Seat::default());
        let opened = Opened::new(&any(&backend), 0, (LAYOUT, 0), &host, open).unwrap();
        assert_eq!(opened.rows.on, RowsOn::Host);
    }
}

/// The error of a card that is named so.
fn refused(named: Option<&str>, change: impl FnOnce(&mut double::Double)) -> String {
    let verbs = begin(change);
    let error =
        Device::open(verbs, named, &Seat::default(), &[]).map(drop).unwrap_err().to_string();
    assert_eq!(left(), (vec![], vec![]), "{error}");
    error
}

#[test]
fn a_card_that_cannot_be_used_says_why() {
    let down = double::DoublePort { state: 1, ..ETHERNET };
    let text = "there is no mlx5 card with an active port: mlx5_0:1 is down";
    assert_eq!(refused(None, |it| it.ports = vec![down]), text);
    let text = "there is no mlx5 card with an active port: mlx5_0 is no mlx5 card";
    assert_eq!(refused(None, |it| it.is_mlx5 = false), text);
    let text = "there is no card `mlx5_1` with an active port";
    assert_eq!(refused(Some("mlx5_1"), |_| {}), text);
    let text = "there is no card `mlx5_0:2` with an active port: mlx5_0:2 is down";
    assert_eq!(refused(Some("mlx5_0:2"), |it| it.ports = vec![ETHERNET, down]), text);
    let text = "`mlx5_0:x` names no card: `mlx5_0` and `mlx5_0:1` do";
    assert_eq!(refused(Some("mlx5_0:x"), |_| {}), text);
    let text = "mlx5_0:1 cannot be used: it has no address for RoCE v2: give its network interface an IP \
                address";
    assert_eq!(refused(None, |it| it.gids = vec![Some((1, IPV4))]), text);
    let text = "mlx5_0:1 cannot be used: it has no GID: does a subnet manager run?";
    let bare = |it: &mut double::Double| (it.ports, it.gids) = (vec![INFINIBAND], vec![]);
    assert_eq!(refused(None, bare), text);
    let verbs = begin(|it| it.atomics = (0x3, 0x8));
    let error = opened(&FakeBackend::new(2), 0, verbs).map(drop).unwrap_err().to_string();
    assert!(error.starts_with("mlx5_0:1 cannot add to words of 4 bytes"), "{error}");
}

#[test]
fn the_port_and_the_address_are_chosen() {
    let down = double::DoublePort { state: 1, ..ETHERNET };
    let verbs = begin(|it| it.ports = vec![down, ETHERNET]);
    let device = Device::open(verbs, Some("mlx5_0"), &Seat::default(), &[]).unwrap();
    assert_eq!((device.name.as_str(), device.port.number), ("mlx5_0:2", 2));
    assert_eq!((device.port.gid.0, device.port.gid_index, device.log_atomics), (IPV4, 3, (4, 3)));
    drop(device);
    let verbs = begin(|it| it.gids = vec![Some((2, LOCAL)), Some((2, [0x20; 16]))]);
    assert_eq!(
        Device::open(verbs, None, &Seat::default(), &[]).unwrap().port.gid_index,
        1,
        "known beyond the link"
    );
    let verbs = begin(|it| it.ports = vec![ETHERNET, INFINIBAND, down]);
    let ports = card_ports(verbs).unwrap().into_iter();
    let said: Vec<String> = ports.map(|port| port.unwrap().to_string()).collect();
    let expected = [
        "mlx5_0:1: Ethernet, active, GID 3 (::ffff:10.0.0.1)",
        "mlx5_0:2: InfiniBand, active, LID 49",
        "mlx5_0:3: Ethernet, down, GID 3 (::ffff:10.0.0.1)",
    ];
    assert_eq!((said, left()), (expected.map(str::to_string).into(), (vec![], vec![])));
}

#[test]
fn a_card_that_does_not_open_hides_no_other() {
    let verbs = begin(|it| it.fails = Some(1));
    let ports = card_ports(verbs).unwrap();
    let said: Vec<String> = ports.into_iter().map(|port| port.unwrap_err().to_string()).collect();
    assert_eq!((said.len(), left()), (1, (vec![], vec![])));
    assert!(
        said[0].starts_with("ibv_open_device failed on mlx5_0: Invalid argument"),
        "{}",
        said[0]
    );
}

/// Every rank in a thread of its own, with a card of its own.
fn together(
    changes: [fn(&mut double::Double); 2],
    options: [CardOptions; 2],
) -> [Result<RowsOn, String>; 2] {
    let id = UniqueId::local().unwrap();
    std::thread::scope(|scope| {
        let id = &id;
        let begin_one = |rank: usize, change: fn(&mut double::Double), options: CardOptions| {
            scope.spawn(move || {
                let verbs = begin(change);
                let member = Member { rank, ranks: 2 };
                let store = Store::join(id, member, Duration::from_secs(20)).unwrap();
                let backend = any(&FakeBackend::new(2));
                let open = || Device::open_all(verbs, &options.devices_of(0), &Seat::default());
                let network = CardNetwork::join_with(&backend, rank, &store, &options, open);
                let said = network.map(|network| {
                    assert_eq!(
                        (network.device(), network.part(NetPart::default()).is_ok()),
                        ("mlx5_0:1", true)
                    );
                    network.rows_on()
                });
                assert_eq!(left(), (vec![], vec![]));
                said.map_err(|error| error.to_string())
            })
        };
        let [first, second] = options;
        let threads = [begin_one(0, changes[0], first), begin_one(1, changes[1], second)];
        threads.map(|thread| thread.join().unwrap())
    })
}

#[test]
fn ranks_join_or_all_of_them_say_why_not() {
    let same = || [options(), options()];
    let both = together([|_| {}, |_| {}], same());
    assert_eq!(both, [Ok(RowsOn::Host), Ok(RowsOn::Host)]);
    let [first, second] = together([|_| {}, |it| it.is_mlx5 = false], same());
    let why = second.unwrap_err();
    assert_eq!(why, "there is no mlx5 card with an active port: mlx5_0 is no mlx5 card");
    assert_eq!(first.unwrap_err(), format!("rank 1 cannot join the network: {why}"));
    // A card that cannot reach its peers keeps these from beginning, too.
    let failing = |it: &mut double::Double| it.fails = Some(26);
    let [first, second] = together([failing, |_| {}], same());
    let why = first.unwrap_err();
    assert!(why.contains("_QP failed on mlx5_0:1") || why.contains("_ah failed"), "{why}");
    assert_eq!(second.unwrap_err(), format!("rank 0 cannot join the network: {why}"));
    let [first, second] = together([|_| {}, |it| it.ports = vec![INFINIBAND]], same());
    assert!(first.unwrap_err().contains("on Ethernet, that of rank 1 on InfiniBand"));
    assert!(second.unwrap_err().contains("on InfiniBand, that of rank 0 on Ethernet"));
    let other = CardOptions { slots: 128, ..options() };
    let [first, second] = together([|_| {}, |_| {}], [options(), other]);
    let text = "rank 1 uses a network of 128 slots a queue, and rank 0 uses one of 64";
    assert_eq!((first.unwrap_err().as_str(), second.is_err()), (text, true));
}

#[test]
fn cards_are_dealt_to_ranks_in_turn() {
    let devices = ["mlx5_0", "mlx5_3", "mlx5_4"].map(str::to_string).to_vec();
    let of = |ports: usize, index: usize| {
        let options = CardOptions { devices: devices.clone(), ports, ..options() };
        options.devices_of(index).into_iter().flatten().map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!([0, 1, 3].map(|index| of(1, index)), [["mlx5_0"], ["mlx5_3"], ["mlx5_0"]]);
    assert_eq!([0, 1].map(|index| of(2, index)), [["mlx5_0", "mlx5_3"], ["mlx5_4", "mlx5_0"]]);
    assert_eq!(super::tests::options().devices_of(5), [None]);
}

/// A queue pair is on one port at both ends, with the doorbell and the keys of that.
#[test]
fn queue_pairs_take_the_ports_of_a_rank_in_turn() {
    let verbs = begin(|it| it.ports = vec![ETHERNET; 2]);
    let backend = FakeBackend::new(2);
    let layout = Layout { queues: 3, ports: 2, ..LAYOUT };
    let (both, tables) = joined_for(&backend, verbs, layout).unwrap();
    let ports: Vec<u64> =
        commands(command::RST2INIT_QP).iter().map(|asked| qp::PORT.read(asked)).collect();
    assert_eq!(ports, [2, 1, 2, 2, 1, 2]);
    for rank in 0..2 {
        let names = both[rank].cards.iter().map(|card| card.device.name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["mlx5_0:1", "mlx5_0:2"]);
        for queue in 0..3 {
            let [own, there] =
                [rank, 1 - rank].map(|rank: usize| &both[rank].cards[(1 + queue) % 2]);
            let pair = 3 * (1 - rank) + queue;
            let told = [64, 68, 72, 76].map(|at| half(&tables[rank], pair, at));
            let keys = [there.regions[0].key, there.regions[1].key];
            let own_keys = [own.regions[0].own_key, own.regions[1].own_key];
            let keys: Vec<u64> = [keys, own_keys].concat().into_iter().map(u64::from).collect();
            assert_eq!(told[..], keys, "rank {rank}, queue {queue}");
            assert_eq!(word(&tables[rank], pair, 24), own.registers.doorbell());
        }
    }
    drop(both);
    assert_eq!(left(), (vec![], vec![]));
    // No rank gets the same port twice.
    let text = "there is no mlx5 card with an active port: mlx5_0:1 is the rank's already";
    let verbs = begin(|_| {});
    let refused = opened_for(&backend, 0, verbs, layout).map(drop).unwrap_err();
    assert_eq!((refused.to_string(), left()), (text.to_string(), (vec![], vec![])));
}
