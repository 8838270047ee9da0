//! Generators on other nodes than their consumers.

use sandbar_client::{ClientError, Code, Job, ObjectRef, ObjectStream};

use crate::in_process_peers::{on, with_nodes};

const STREAMS: &str = "tests/programs/streams";

async fn squares(job: &Job, number: u16, items: u64, buffer: u32) -> Result<ObjectStream<u64>, ClientError> {
    job.task("squares").options(on(number).buffer(buffer)).stream((items, 0)).await
}

#[test]
fn items_come_in_order_from_any_node() {
    with_nodes(STREAMS, async |_, job| {
        for number in 1..=3 {
            for (items, buffer) in [(0, 64), (1, 1), (200, 1), (2000, 64)] {
                let mut stream = squares(&job, number, items, buffer).await?;
                let mut count = 0;
                while let Some(item) = stream.next().await {
                    assert_eq!(item?.get().await?, count * count, "item {count} of node {number}");
                    count += 1;
                }
                assert_eq!(count, items, "node {number}, {buffer} ahead");
            }
            // Long items stay on the node that yields them.
            let mut lists: ObjectStream<Vec<u64>> = job.task("lists").options(on(number)).stream((20, 30_000)).await?;
            let mut lengths = Vec::new();
            while let Some(list) = lists.next().await {
                let length: ObjectRef<u64> = job.task("length").options(on(number % 3 + 1)).submit((&list?,)).await?;
                lengths.push(length);
            }
            assert_eq!(lengths.len(), 20);
            for (length, item) in lengths.iter().zip(0..) {
                assert_eq!(length.get().await?, 30_000 + item, "node {number}");
            }
            // Tasks on that node consume items of generators on others.
            let there: ObjectRef<u64> = job.task("in_order").options(on(number)).submit((300, 4)).await?;
            assert_eq!(there.get().await?, 300);
        }
        Ok(())
    });
}

#[test]
fn a_generator_fails_or_ends_where_it_is() {
    with_nodes(STREAMS, async |_, job| {
        for number in 1..=3 {
            let mut stream: ObjectStream<u64> = job.task("fails_at").options(on(number)).stream((5,)).await?;
            let mut items = 0;
            let error = loop {
                match stream.next().await.expect("it fails before it ends") {
                    Ok(item) => match item.get().await {
                        Ok(_) => items += 1,
                        Err(error) => break error,
                    },
                    Err(error) => break error,
                }
            };
            assert_eq!((items, error.fault.code), (5, Code::Refused), "node {number}: {error}");
            // No consumer remains: the resources are free for others.
            let mut endless = squares(&job, number, u64::MAX, 2).await?;
            endless.next().await.expect("there is one")?;
            drop(endless);
            drop(job.task("spins").options(on(number)).stream::<u64>(()).await?);
            let length: ObjectRef<u64> = job.task("length").options(on(number)).submit((vec![1_u64, 2],)).await?;
            assert_eq!(length.get().await?, 2);
        }
        Ok(())
    });
}

#[test]
fn a_stream_continues_after_the_loss_of_its_node() {
    with_nodes(STREAMS, async |nodes, job| {
        let options = sandbar_client::TaskOptions::new().resource("other", 2.0).buffer(4);
        // One of the two nodes with the resource runs the first generator, the other one the second.
        let mut streams: Vec<ObjectStream<u64>> = Vec::new();
        for _ in 0..2 {
            streams.push(job.task("squares").options(options.clone()).stream((100, 0)).await?);
        }
        for stream in &mut streams {
            for count in 0..30_u64 {
                assert_eq!(stream.next().await.expect("there are more")?.get().await?, count * count);
            }
        }
        drop(nodes.pop());
        for stream in &mut streams {
            for count in 30..100_u64 {
                assert_eq!(stream.next().await.expect("there are more")?.get().await?, count * count);
            }
            assert_eq!(stream.next().await, None);
        }
        Ok(())
    });
}
