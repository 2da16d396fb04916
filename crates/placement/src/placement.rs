//! The assignment of buckets to devices, and how it changes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use fastrand::Rng;

/// Names a bucket; the caller gives the numbers out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketId(pub u64);

impl fmt::Display for BucketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names a device, in the numbers of whoever runs the devices.
pub type Home = u32;

/// A bucket that changes its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// The bucket.
    pub bucket: BucketId,
    /// Where it was.
    pub from: Option<Home>,
    /// Where it belongs now; `None` when no device is left.
    pub to: Option<Home>,
}

/// A bucket's weight and where it lives.
#[derive(Debug, Clone, Copy)]
struct Placed {
    load: u64,
    home: Option<Home>,
    /// Position in the list of its home.
    index: usize,
}

/// The buckets of one device.
#[derive(Debug, Default)]
struct Residents {
    buckets: Vec<BucketId>,
    load: u64,
}

/// Buckets, devices, and the random assignment of the ones to the others.
#[derive(Debug)]
pub struct Placement {
    rng: Rng,
    homes: BTreeMap<Home, Residents>,
    buckets: HashMap<BucketId, Placed>,
    epoch: u64,
}

impl Placement {
    /// An empty placement whose draws follow from `seed`.
    pub fn new(seed: u64) -> Placement {
        Placement {
            rng: Rng::with_seed(seed),
            homes: BTreeMap::new(),
            buckets: HashMap::new(),
            epoch: 0,
        }
    }

    /// Counts changes: any two answers under the same epoch agree.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The devices that take buckets, in order.
    pub fn homes(&self) -> impl Iterator<Item = Home> + '_ {
        self.homes.keys().copied()
    }

    /// Number of buckets known, placed or not.
    pub fn bucket_count(&self) -> usize {
        self.buckets.len()
    }

    /// Where a bucket lives.
    pub fn home(&self, bucket: BucketId) -> Option<Home> {
        self.buckets.get(&bucket)?.home
    }

    /// Buckets on a device.
    pub fn count_on(&self, home: Home) -> usize {
        self.homes
            .get(&home)
            .map_or(0, |residents| residents.buckets.len())
    }

    /// Sum of the loads of a device's buckets.
    pub fn load_on(&self, home: Home) -> u64 {
        self.homes.get(&home).map_or(0, |residents| residents.load)
    }

    /// Gives a bucket a device: the less loaded of two drawn at random among those that `fits` accepts. `fits` is
    /// asked about one device at a time, and the first it accepts is taken. `None` when it accepts none; the bucket is
    /// then known without a home. A bucket that had a home loses it first.
    pub fn draw(
        &mut self,
        bucket: BucketId,
        load: u64,
        mut fits: impl FnMut(Home) -> bool,
    ) -> Option<Home> {
        self.evict(bucket);
        let home = self.candidates().into_iter().find(|home| fits(*home));
        self.settle(bucket, load, home);
        home
    }

    /// Puts a bucket on a device the caller has chosen, or on none.
    pub fn assign(&mut self, bucket: BucketId, load: u64, home: Option<Home>) {
        self.evict(bucket);
        self.settle(
            bucket,
            load,
            home.filter(|home| self.homes.contains_key(home)),
        );
    }

    /// Changes a bucket's load where it lives.
    pub fn resize(&mut self, bucket: BucketId, load: u64) {
        let Some(placed) = self.buckets.get_mut(&bucket) else {
            return;
        };
        let before = std::mem::replace(&mut placed.load, load);
        if let Some(residents) = placed.home.and_then(|home| self.homes.get_mut(&home)) {
            residents.load = residents.load - before + load;
        }
    }

    /// Forgets a bucket.
    pub fn remove(&mut self, bucket: BucketId) {
        self.evict(bucket);
        self.buckets.remove(&bucket);
        self.epoch += 1;
    }

    /// Adds a device and moves `b / G` of the `b` placed buckets to it, `G` being the devices there are now. Each is a
    /// random bucket of the device that has most.
    pub fn join(&mut self, home: Home) -> Vec<Move> {
        if self.homes.contains_key(&home) {
            return Vec::new();
        }
        let placed: usize = self
            .homes
            .values()
            .map(|residents| residents.buckets.len())
            .sum();
        self.homes.insert(home, Residents::default());
        self.epoch += 1;
        let share = placed / self.homes.len();
        (0..share).filter_map(|_| self.move_one_to(home)).collect()
    }

    /// Takes a device away; each of its buckets draws a new one.
    pub fn leave(&mut self, home: Home) -> Vec<Move> {
        let Some(residents) = self.homes.remove(&home) else {
            return Vec::new();
        };
        self.epoch += 1;
        residents
            .buckets
            .into_iter()
            .map(|bucket| self.redraw(bucket, home))
            .collect()
    }

    fn redraw(&mut self, bucket: BucketId, from: Home) -> Move {
        let load = self.buckets.get(&bucket).map_or(0, |placed| placed.load);
        let to = self.candidates().into_iter().next();
        self.settle(bucket, load, to);
        Move {
            bucket,
            from: Some(from),
            to,
        }
    }

    fn move_one_to(&mut self, to: Home) -> Option<Move> {
        let others = self.homes.iter().filter(|(home, _)| **home != to);
        let (&from, residents) = others.max_by_key(|(home, residents)| {
            (residents.buckets.len(), residents.load, Reverse(**home))
        })?;
        let bucket = *residents
            .buckets
            .get(self.rng.usize(..residents.buckets.len().max(1)))?;
        let load = self.buckets.get(&bucket)?.load;
        self.assign(bucket, load, Some(to));
        Some(Move {
            bucket,
            from: Some(from),
            to: Some(to),
        })
    }

    /// All devices in the order in which a bucket tries them: two drawn at random, the less loaded one first, then the
    /// others from the least loaded.
    fn candidates(&mut self) -> Vec<Home> {
        let mut homes: Vec<Home> = self.homes.keys().copied().collect();
        let drawn = homes.len().min(2);
        for index in 0..drawn {
            let chosen = self.rng.usize(index..homes.len());
            homes.swap(index, chosen);
        }
        homes[..drawn].sort_by_key(|home| self.fullness(*home));
        homes[drawn..].sort_by_key(|home| self.fullness(*home));
        homes
    }

    fn fullness(&self, home: Home) -> (u64, usize) {
        (self.load_on(home), self.count_on(home))
    }

    /// Takes a bucket off its device.
    fn evict(&mut self, bucket: BucketId) {
        let Some(placed) = self.buckets.get_mut(&bucket) else {
            return;
        };
        let Some(home) = placed.home.take() else {
            return;
        };
        let (index, load) = (placed.index, placed.load);
        let Some(residents) = self.homes.get_mut(&home) else {
            return;
        };
        residents.load -= load;
        residents.buckets.swap_remove(index);
        if let Some(moved) = residents.buckets.get(index) {
            self.buckets
                .get_mut(moved)
                .expect("a resident is a known bucket")
                .index = index;
        }
    }

    /// Records a bucket on a device, or on none.
    fn settle(&mut self, bucket: BucketId, load: u64, home: Option<Home>) {
        let mut index = 0;
        if let Some(residents) = home.and_then(|home| self.homes.get_mut(&home)) {
            index = residents.buckets.len();
            residents.buckets.push(bucket);
            residents.load += load;
        }
        self.buckets.insert(bucket, Placed { load, home, index });
        self.epoch += 1;
    }
}
