//! The assignment of shards to devices, and how it changes.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use fastrand::Rng;

/// Identifies a shard; the caller assigns the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u64);

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A change of a shard's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move<D> {
    /// The shard.
    pub shard: ShardId,
    /// The previous owner.
    pub from: D,
    /// The new owner; `None` if no device is left.
    pub to: Option<D>,
}

/// A shard's load and owner.
#[derive(Debug, Clone, Copy)]
struct Placed<D> {
    load: u64,
    owner: Option<D>,
    /// Position in the owner's list of shards.
    index: usize,
}

/// A device's weight and shards.
#[derive(Debug)]
struct Holdings {
    weight: u64,
    shards: Vec<ShardId>,
    load: u64,
}

impl Holdings {
    /// Compares this device with `other` by load divided by weight, as if this device had the load `load`, and `other`
    /// had the load `other_load`.
    fn compare_load(&self, load: u64, other: &Holdings, other_load: u64) -> Ordering {
        // Compares load / weight without division. The products fit in 128 bits, because sums of loads and of weights
        // have 64 bits each.
        let scaled = |load: u64, other: &Holdings| u128::from(load) * u128::from(other.weight);
        scaled(load, other).cmp(&scaled(other_load, self))
    }
}

/// The random assignment of shards to devices. `D` identifies a device.
#[derive(Debug)]
pub struct Placement<D> {
    rng: Rng,
    devices: BTreeMap<D, Holdings>,
    shards: HashMap<ShardId, Placed<D>>,
    epoch: u64,
}

impl<D: Copy + Ord> Placement<D> {
    /// Returns an empty placement. `seed` determines its random draws.
    pub fn new(seed: u64) -> Placement<D> {
        Placement {
            rng: Rng::with_seed(seed),
            devices: BTreeMap::new(),
            shards: HashMap::new(),
            epoch: 0,
        }
    }

    /// Returns the number of changes so far. While the epoch is the same, the placement is the same.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the devices in ascending order.
    pub fn devices(&self) -> impl Iterator<Item = D> + '_ {
        self.devices.keys().copied()
    }

    /// Returns the number of shards, with and without owners.
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Returns the device that owns a shard.
    pub fn owner(&self, shard: ShardId) -> Option<D> {
        self.shards.get(&shard)?.owner
    }

    /// Returns the number of shards of a device.
    pub fn count_on(&self, device: D) -> usize {
        self.devices
            .get(&device)
            .map_or(0, |holdings| holdings.shards.len())
    }

    /// Returns the sum of the loads of a device's shards.
    pub fn load_on(&self, device: D) -> u64 {
        self.devices
            .get(&device)
            .map_or(0, |holdings| holdings.load)
    }

    /// Draws an owner for a shard. First takes the shard from its previous owner. Then draws two random devices that
    /// are not in `refused`, adds the shard's load to the load of each, and takes the device with the lower load
    /// divided by weight. Returns `None` if every device is in `refused`; the shard then has no owner.
    ///
    /// The caller copies the shard after this call, and need not hold a lock on the placement meanwhile. If the device
    /// has no room, the caller calls `draw` again with the device in `refused`.
    pub fn draw(&mut self, shard: ShardId, load: u64, refused: &[D]) -> Option<D> {
        self.evict(shard);
        let owner = self.less_loaded_of_two(load, refused);
        self.settle(shard, load, owner);
        owner
    }

    /// Records a shard without an owner.
    pub fn unassign(&mut self, shard: ShardId) {
        self.evict(shard);
        self.settle(shard, 0, None);
    }

    /// Changes a shard's load without changing its owner.
    pub fn resize(&mut self, shard: ShardId, load: u64) {
        let Some(placed) = self.shards.get_mut(&shard) else {
            return;
        };
        let before = std::mem::replace(&mut placed.load, load);
        if let Some(holdings) = placed.owner.and_then(|owner| self.devices.get_mut(&owner)) {
            holdings.load = holdings.load - before + load;
        }
    }

    /// Removes a shard.
    pub fn remove(&mut self, shard: ShardId) {
        self.evict(shard);
        self.shards.remove(&shard);
        self.epoch += 1;
    }

    /// Adds a device and moves its share of the load to it. The share is `L * weight / W`, where `L` is the load of all
    /// placed shards, and `W` is the weight of all devices including the new device. For example, if `b` shards with
    /// equal loads are placed, and there are `G` devices with equal weights including the new device, its share is
    /// `b/G` shards.
    ///
    /// Each moved shard is drawn at random from the shards of the device with the highest load divided by weight. The
    /// first shard that would exceed the share ends the moves, so the device may get up to one shard less than its
    /// share. A weight of 0 counts as 1. Does nothing if the device is a member.
    pub fn join(&mut self, device: D, weight: u64) -> Vec<Move<D>> {
        if self.devices.contains_key(&device) {
            return Vec::new();
        }
        let holdings = Holdings {
            weight: weight.max(1),
            shards: Vec::new(),
            load: 0,
        };
        self.devices.insert(device, holdings);
        self.epoch += 1;
        let share = self.share_of(device);
        std::iter::from_fn(|| self.move_one_to(device, share)).collect()
    }

    /// Removes a device and draws new owners for its shards.
    pub fn leave(&mut self, device: D) -> Vec<Move<D>> {
        let Some(holdings) = self.devices.remove(&device) else {
            return Vec::new();
        };
        self.epoch += 1;
        let mut redraw = |shard| {
            let load = self.shards.get(&shard).map_or(0, |placed| placed.load);
            let to = self.less_loaded_of_two(load, &[]);
            self.settle(shard, load, to);
            Move {
                shard,
                from: device,
                to,
            }
        };
        holdings.shards.into_iter().map(&mut redraw).collect()
    }

    /// Returns a device's share of the total load in proportion to its weight, rounded down.
    fn share_of(&self, device: D) -> u64 {
        let sum = |of: fn(&Holdings) -> u64| -> u128 {
            self.devices
                .values()
                .map(|holdings| u128::from(of(holdings)))
                .sum()
        };
        let weight = self
            .devices
            .get(&device)
            .map_or(0, |holdings| holdings.weight);
        let all = sum(|holdings| holdings.weight).max(1);
        let share = sum(|holdings| holdings.load) * u128::from(weight) / all;
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Takes a random shard from the device with the highest load divided by weight, not counting `to`, and moves it to
    /// `to`. Returns `None` if no other device has a load, or if `to` would then hold more than `load_max`.
    fn move_one_to(&mut self, to: D, load_max: u64) -> Option<Move<D>> {
        let others = self.devices.iter().filter(|(device, _)| **device != to);
        let (&from, holdings) =
            others.max_by(|(_, a), (_, b)| a.compare_load(a.load, b, b.load))?;
        if holdings.load == 0 {
            return None;
        }
        let shard = holdings.shards[self.rng.usize(..holdings.shards.len())];
        let load = self.shards.get(&shard)?.load;
        if self.load_on(to) + load > load_max {
            return None;
        }
        self.evict(shard);
        self.settle(shard, load, Some(to));
        Some(Move {
            shard,
            from,
            to: Some(to),
        })
    }

    /// Draws two devices that are not in `refused`, and returns the one whose load divided by weight is lower after
    /// `load` is added.
    fn less_loaded_of_two(&mut self, load: u64, refused: &[D]) -> Option<D> {
        let first = self.draw_device(refused, None)?;
        let Some(second) = self.draw_device(refused, Some(first)) else {
            return Some(first);
        };
        let (one, other) = (&self.devices[&first], &self.devices[&second]);
        match one.compare_load(one.load + load, other, other.load + load) {
            Ordering::Greater => Some(second),
            Ordering::Less | Ordering::Equal => Some(first),
        }
    }

    /// Draws a device that is neither in `refused` nor equal to `drawn`, with a probability proportional to its weight.
    fn draw_device(&mut self, refused: &[D], drawn: Option<D>) -> Option<D> {
        let is_open = |device: &D| !refused.contains(device) && drawn != Some(*device);
        let open = self.devices.iter().filter(|(device, _)| is_open(device));
        let weights: u64 = open.clone().map(|(_, holdings)| holdings.weight).sum();
        if weights == 0 {
            return None;
        }
        let mut at = self.rng.u64(..weights);
        for (device, holdings) in open {
            if at < holdings.weight {
                return Some(*device);
            }
            at -= holdings.weight;
        }
        None
    }

    /// Removes a shard from its owner.
    fn evict(&mut self, shard: ShardId) {
        let Some(placed) = self.shards.get_mut(&shard) else {
            return;
        };
        let Some(owner) = placed.owner.take() else {
            return;
        };
        let (index, load) = (placed.index, placed.load);
        let Some(holdings) = self.devices.get_mut(&owner) else {
            return;
        };
        holdings.load -= load;
        holdings.shards.swap_remove(index);
        if let Some(moved) = holdings.shards.get(index) {
            self.shards
                .get_mut(moved)
                .expect("every shard of a device is in `shards`")
                .index = index;
        }
    }

    /// Records a shard with or without an owner.
    fn settle(&mut self, shard: ShardId, load: u64, owner: Option<D>) {
        let mut index = 0;
        if let Some(holdings) = owner.and_then(|owner| self.devices.get_mut(&owner)) {
            index = holdings.shards.len();
            holdings.shards.push(shard);
            holdings.load += load;
        }
        self.shards.insert(shard, Placed { load, owner, index });
        self.epoch += 1;
    }
}
