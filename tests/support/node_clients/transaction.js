// Starts a transaction with kafkajs, and prints the error: node transaction.js ADDRESS
const { Kafka, logLevel } = require('kafkajs')

async function main() {
  const kafka = new Kafka({ brokers: [process.argv[2]], logLevel: logLevel.NOTHING })
  const producer = kafka.producer({ transactionalId: 't', idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  try {
    await producer.transaction()
  } catch (error) {
    console.log(error.message)
  }
  await producer.disconnect()
}

main()
