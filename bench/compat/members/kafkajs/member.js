// A member of a group, or a producer, with kafkajs; `compat/members/__init__.py` says what it takes and tells.
const { Kafka, logLevel } = require('kafkajs')

const [bootstrap, topic, role, what] = process.argv.slice(2)
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR })

async function produce() {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const messages = Array.from({ length: Number(what) }, (_, each) => ({ key: `${each}`, value: `${each}` }))
  await producer.send({ topic, acks: -1, messages })
  await producer.disconnect()
}

async function read() {
  const consumer = kafka.consumer({ groupId: what, sessionTimeout: 10000, heartbeatInterval: 300 })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => {
      await consumer.commitOffsets([{ topic, partition, offset: `${Number(message.offset) + 1}` }])
      console.log(partition, message.offset)
    },
  })
  process.stdin.resume()
  process.stdin.on('end', async () => {
    await consumer.disconnect()
    process.exit(0)
  })
}

(role === 'produce' ? produce() : read()).catch((error) => {
  console.error(error)
  process.exit(1)
})
