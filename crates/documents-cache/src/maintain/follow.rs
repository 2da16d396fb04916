//! Updates the placement when devices join, leave or are lost.

use std::collections::HashSet;
use std::sync::Arc;

use forebay_device::{Device, DeviceId};

use super::{Extent, maintain};
use crate::cache::Shared;

/// Updates the placement: adds devices that have joined, and removes devices that have left or are lost. Then moves the
/// buckets to their new owners. Blocks until all buckets have moved, including buckets that another thread is moving.
/// Searches continue.
pub(crate) fn follow_devices(shared: &Arc<Shared>) {
    let ready = change_placement(shared);
    for collection in shared.members() {
        maintain(&collection, Extent::Placement);
    }
    shared.forget_devices_except(&ready);
}

/// Updates the placement, and records how many buckets each device gains or loses. Returns the devices that are ready.
fn change_placement(shared: &Shared) -> HashSet<DeviceId> {
    let mut moved = shared.moved.lock();
    let devices = shared.devices.list();
    let ready: Vec<_> = devices.iter().filter(|device| device.is_ready()).collect();
    let ids: HashSet<_> = ready.iter().map(|device| device.id()).collect();
    let known: HashSet<_> = shared.owners.lock().devices().collect();
    for id in known.difference(&ids) {
        let moves = shared.owners.lock().leave(*id);
        moved.insert(*id, moves.len());
    }
    for device in ready
        .into_iter()
        .filter(|device| !known.contains(&device.id()))
    {
        prepare(device);
        moved.insert(device.id(), shared.owners.join(device));
    }
    ids
}

/// Allocates the memory that searches need on a GPU, before buckets fill it.
fn prepare(device: &Device) {
    if let Err(error) = forebay_text_gpu::prepare(device) {
        tracing::warn!(%error, "a device is not ready to search");
    }
}
