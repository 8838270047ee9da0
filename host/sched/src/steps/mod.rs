//! Steps of the scheduler: each file handles some events, or a consequence of several.

mod actor_calls;
mod actor_placement;
mod actors;
mod borrow;
mod cancel;
mod commit;
mod dispatch;
mod events;
mod group_placement;
mod groups;
mod jobs;
mod lineage;
mod locality;
mod node_load;
mod objects;
mod promise;
mod recall;
mod reconstruction;
mod reservations;
mod streams;
mod submit;
mod task_tree;
mod tasks;
mod worker_loss;
