//! Invariants that hold after any sequence of draws, joins and leaves.

use std::collections::BTreeMap;

use forebay_placement::{Placement, ShardId};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Operation {
    Draw {
        shard: u64,
        load: u64,
        refused: Vec<u32>,
    },
    Unassign {
        shard: u64,
    },
    Resize {
        shard: u64,
        load: u64,
    },
    Remove {
        shard: u64,
    },
    Join {
        device: u32,
        weight: u64,
    },
    Leave {
        device: u32,
    },
}

const SHARDS: u64 = 60;

fn operation() -> impl Strategy<Value = Operation> {
    let (shard, load, device) = (0..SHARDS, 0..100u64, 0..6u32);
    let refused = prop::collection::vec(device.clone(), 0..3);
    prop_oneof![
        8 => (shard.clone(), load.clone(), refused)
            .prop_map(|(shard, load, refused)| Operation::Draw { shard, load, refused }),
        1 => shard.clone().prop_map(|shard| Operation::Unassign { shard }),
        2 => (shard.clone(), load).prop_map(|(shard, load)| Operation::Resize { shard, load }),
        2 => shard.prop_map(|shard| Operation::Remove { shard }),
        2 => (device.clone(), 0..1000u64).prop_map(|(device, weight)| Operation::Join { device, weight }),
        1 => device.prop_map(|device| Operation::Leave { device }),
    ]
}

/// The model: the owner and load of each shard, and the weight of each device.
#[derive(Debug, Default, PartialEq)]
struct Model {
    shards: BTreeMap<u64, (Option<u32>, u64)>,
    weights: BTreeMap<u32, u64>,
}

impl Model {
    fn load_on(&self, device: u32) -> u64 {
        let loads = self.shards.values();
        let loads = loads.filter(|(owner, _)| *owner == Some(device));
        loads.map(|(_, load)| load).sum()
    }

    /// Returns a device's share of the total load in proportion to its weight.
    fn share_of(&self, device: u32) -> f64 {
        let load: u64 = self
            .weights
            .keys()
            .map(|device| self.load_on(*device))
            .sum();
        let weights: u64 = self.weights.values().sum();
        load as f64 * self.weights[&device] as f64 / weights as f64
    }

    fn load_max(&self) -> u64 {
        self.shards
            .values()
            .map(|(_, load)| *load)
            .max()
            .unwrap_or(0)
    }

    fn apply(&mut self, placement: &mut Placement<u32>, operation: &Operation) {
        match operation.clone() {
            Operation::Draw {
                shard,
                load,
                refused,
            } => {
                let owner = placement.draw(ShardId(shard), load, &refused);
                let is_open = |device: u32| !refused.contains(&device);
                assert_eq!(owner.is_some(), placement.devices().any(is_open));
                assert!(owner.is_none_or(is_open), "{owner:?} was refused");
                self.shards.insert(shard, (owner, load));
            }
            Operation::Unassign { shard } => {
                placement.unassign(ShardId(shard));
                self.shards.insert(shard, (None, 0));
            }
            Operation::Resize { shard, load } => {
                placement.resize(ShardId(shard), load);
                self.shards.entry(shard).and_modify(|entry| entry.1 = load);
            }
            Operation::Remove { shard } => {
                placement.remove(ShardId(shard));
                self.shards.remove(&shard);
            }
            Operation::Join { device, weight } => self.join(placement, device, weight),
            Operation::Leave { device } => self.leave(placement, device),
        }
    }

    fn join(&mut self, placement: &mut Placement<u32>, device: u32, weight: u64) {
        let moves = placement.join(device, weight);
        if self.weights.contains_key(&device) {
            assert_eq!(moves, [], "the device is a member already");
            return;
        }
        self.weights.insert(device, weight.max(1));
        for moved in &moves {
            assert_eq!(moved.to, Some(device));
            let entry = self.shards.get_mut(&moved.shard.0).expect("a known shard");
            assert_eq!(entry.0, Some(moved.from));
            assert_ne!(moved.from, device);
            entry.0 = Some(device);
        }
        let (load, share) = (self.load_on(device) as f64, self.share_of(device));
        let least = share.floor() - self.load_max() as f64;
        assert!(
            load <= share,
            "{load} of {share}: more moved than its share"
        );
        assert!(
            load > least || share < 1.0 || self.load_max() == 0,
            "{load} of {share}"
        );
    }

    fn leave(&mut self, placement: &mut Placement<u32>, device: u32) {
        let owned = self
            .shards
            .values()
            .filter(|(owner, _)| *owner == Some(device));
        let owned = owned.count();
        let moves = placement.leave(device);
        assert_eq!(moves.len(), owned, "no shard of another device moves");
        assert_eq!(placement.count_on(device), 0);
        self.weights.remove(&device);
        for moved in moves {
            assert_eq!(moved.from, device);
            assert_ne!(moved.to, Some(device));
            assert_eq!(moved.to.is_some(), placement.devices().next().is_some());
            let entry = self.shards.get_mut(&moved.shard.0).expect("a known shard");
            *entry = (moved.to, entry.1);
        }
    }

    fn check(&self, placement: &Placement<u32>) {
        assert_eq!(placement.shard_count(), self.shards.len());
        for (shard, (owner, _)) in &self.shards {
            assert_eq!(placement.owner(ShardId(*shard)), *owner, "shard {shard}");
        }
        assert!(placement.devices().eq(self.weights.keys().copied()));
        for device in placement.devices() {
            let owners = self.shards.values().map(|(owner, _)| *owner);
            let count = owners.filter(|owner| *owner == Some(device)).count();
            assert_eq!(placement.count_on(device), count);
            assert_eq!(placement.load_on(device), self.load_on(device));
        }
    }
}

fn owners(placement: &Placement<u32>) -> Vec<Option<u32>> {
    (0..SHARDS)
        .map(|shard| placement.owner(ShardId(shard)))
        .collect()
}

/// Maximum load of a device above its share, in shards. With two choices the excess grows as log log n for n devices,
/// so 5 shards are generous for nine devices.
const SHARDS_ABOVE_SHARE_MAX: u64 = 5;

/// Returns a placement of `shards` shards, with loads between 1 and `load_max`, on devices with these weights.
fn drawn(weights: &[u64], shards: u64, load_max: u64, seed: u64) -> Placement<usize> {
    let mut placement = Placement::new(seed);
    for (device, weight) in weights.iter().enumerate() {
        placement.join(device, *weight);
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    for shard in 0..shards {
        placement.draw(ShardId(shard), rng.u64(1..=load_max), &[]);
    }
    placement
}

/// Panics if a device's load exceeds its share by more than [`SHARDS_ABOVE_SHARE_MAX`] times the maximum load of a
/// shard.
fn check_shares(placement: &Placement<usize>, weights: &[u64], load_max: u64) {
    let devices = || 0..weights.len();
    let load: u64 = devices().map(|device| placement.load_on(device)).sum();
    let all: u64 = weights.iter().sum();
    for device in devices() {
        let share = load * weights[device] / all;
        let most = share + SHARDS_ABOVE_SHARE_MAX * load_max;
        let held = placement.load_on(device);
        assert!(held <= most, "load {held}, share {share}: {placement:?}");
    }
}

proptest! {
    #[test]
    fn agrees_with_the_model(operations in prop::collection::vec(operation(), 0..200), seed: u64) {
        let mut placement = Placement::new(seed);
        let mut model = Model::default();
        for operation in &operations {
            let (epoch, before) = (placement.epoch(), owners(&placement));
            model.apply(&mut placement, operation);
            model.check(&placement);
            let is_same = before == owners(&placement);
            prop_assert!(is_same || placement.epoch() > epoch, "a change has a new epoch");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_placement(
        operations in prop::collection::vec(operation(), 0..200),
        seed: u64,
    ) {
        let run = || {
            let (mut placement, mut model) = (Placement::new(seed), Model::default());
            operations.iter().for_each(|operation| model.apply(&mut placement, operation));
            model
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn equal_devices_hold_equal_loads(devices in 2..9usize, per_device in 10..200u64, seed: u64) {
        let shards = devices as u64 * per_device;
        let mut placement = drawn(&vec![1; devices], shards, 1, seed);
        check_shares(&placement, &vec![1; devices], 1);
        let moves = placement.join(devices, 1);
        prop_assert_eq!(moves.len() as u64, shards / (devices as u64 + 1), "b / G shards move");
        check_shares(&placement, &vec![1; devices + 1], 1);
    }

    #[test]
    fn each_device_holds_its_share_by_weight(
        weights in prop::collection::vec(1..1000u64, 2..9),
        shards in 10..1000u64,
        load_max in 1..100u64,
        joining in 1..1000u64,
        seed: u64,
    ) {
        let mut placement = drawn(&weights, shards, load_max, seed);
        check_shares(&placement, &weights, load_max);
        placement.join(weights.len(), joining);
        let with_joined = [&weights[..], &[joining]].concat();
        check_shares(&placement, &with_joined, load_max);
        placement.leave(weights.len());
        check_shares(&placement, &weights, load_max);
    }
}
