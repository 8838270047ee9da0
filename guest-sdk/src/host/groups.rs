//! Placement groups of the test host, in this process and thread. Resources are unlimited, and nothing runs
//! concurrently.

use sandbar_core::{Code, Fault, GROUP_BUNDLES_MAX, GroupRequest, RequestOptions, Strategy};

use super::program_host::{ProgramHost, host};
use crate::bindings::tasks::Outcome;

pub(crate) fn group(request: &[u8]) -> u64 {
    let request: GroupRequest = postcard::from_bytes(request).expect("a request is written by `PlacementGroup`");
    let bundles = request.bundles.len();
    assert!(
        (1..=GROUP_BUNDLES_MAX).contains(&bundles),
        "a placement group of {bundles} bundles: it has from 1 to {GROUP_BUNDLES_MAX}"
    );
    host(|host| {
        let group = host.add(Outcome::Value, Vec::new(), Vec::new());
        host.groups.insert(group, bundles);
        group
    })
}

pub(crate) fn remove_group(group: u64) {
    host(|host| host.groups.remove(&group));
}

impl ProgramHost {
    /// Returns the fault of options whose placement is impossible.
    pub(super) fn admit_strategy(&self, options: &RequestOptions) -> Option<Fault> {
        let Strategy::Group { group, bundle } = options.strategy else { return None };
        match (self.groups.get(&group.0), bundle) {
            (None, _) => {
                let message = format!("placement group {} does not exist or was removed", group.short());
                Some(Fault::new(Code::GroupRemoved, message))
            }
            (Some(count), Some(bundle)) if bundle as usize >= *count => {
                let message =
                    format!("placement group {} has no bundle {bundle}: it has {count}, from 0 on", group.short());
                Some(Fault::new(Code::BadRequest, message))
            }
            _ => None,
        }
    }
}
