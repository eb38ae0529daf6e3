//! A member of a group, or a producer, with krafka; `compat/members/__init__.py` says what it takes and tells.

use std::error::Error;
use std::time::Duration;

use krafka::consumer::{AutoOffsetReset, GroupProtocol};
use krafka::share_consumer::AcknowledgementMode;
use krafka::{Kafka, Record};
use tokio::io::AsyncReadExt;

const PAUSE: Duration = Duration::from_millis(200);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [bootstrap, topic, role, what] = &given[..] else {
        return Err("BOOTSTRAP TOPIC ROLE WHAT".into());
    };
    let kafka = Kafka::builder(bootstrap).connect().await?;
    match role.as_str() {
        "produce" => produce(&kafka, topic, what.parse()?).await,
        "share" => share(&kafka, topic, what).await,
        "consumer" => read(&kafka, topic, what, GroupProtocol::Consumer).await,
        _ => read(&kafka, topic, what, GroupProtocol::Classic).await,
    }
}

async fn produce(kafka: &Kafka, topic: &str, count: u32) -> Result<(), Box<dyn Error>> {
    let producer = kafka.producer().build().await?;
    let mut sent = Vec::new();
    for number in 0..count {
        let text = number.to_string();
        sent.push(producer.enqueue(Record::new(topic, text.clone()).key(text)).await?);
    }
    for one in sent {
        one.await?;
    }
    Ok(producer.close().await?)
}

async fn read(kafka: &Kafka, topic: &str, group: &str, protocol: GroupProtocol) -> Result<(), Box<dyn Error>> {
    let mut building = kafka
        .consumer(group)
        .group_protocol(protocol)
        .auto_offset_reset(AutoOffsetReset::Earliest)
        .enable_auto_commit(false);
    if protocol == GroupProtocol::Classic {
        building = building.session_timeout(Duration::from_secs(10)).heartbeat_interval(Duration::from_millis(300));
    }
    let consumer = building.build().await?;
    consumer.subscribe([topic]).await?;
    let ended = stdin_ends();
    let mut untold = Vec::new();
    while !ended.is_finished() {
        untold.extend(consumer.poll(PAUSE).await?);
        // A commit that a rebalance refuses is made by the next one, or before the partitions are given back.
        if !untold.is_empty() && consumer.commit().await.is_ok() {
            untold.drain(..).for_each(|one| println!("{} {}", one.partition, one.offset));
        }
    }
    Ok(consumer.close().await?)
}

async fn share(kafka: &Kafka, topic: &str, group: &str) -> Result<(), Box<dyn Error>> {
    let consumer = kafka.share_consumer(group).acknowledgement_mode(AcknowledgementMode::Explicit).build().await?;
    consumer.subscribe([topic]).await?;
    let ended = stdin_ends();
    while !ended.is_finished() {
        let records = consumer.poll(PAUSE).await?;
        for one in &records {
            consumer.ack(one)?;
        }
        let outcomes = consumer.commit().await?;
        if outcomes.iter().all(|(_, outcome)| outcome.is_ok()) {
            records.iter().for_each(|one| println!("{} {}", one.partition, one.offset));
        }
    }
    Ok(consumer.close().await?)
}

fn stdin_ends() -> tokio::task::JoinHandle<()> {
    tokio::spawn(async {
        let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
    })
}
