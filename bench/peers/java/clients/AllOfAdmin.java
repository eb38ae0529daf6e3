import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListStreamsGroupOffsetsSpec;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RaftVoterEndpoint;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.admin.UserScramCredentialDeletion;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Every method of Java's Admin, once, against a broker: BOOTSTRAP.
 *
 * <p>A line for each: its name, a tab, and "passed" or what went wrong. A method that is tried by no check is told as
 * such. Where a plain Apache Kafka refuses a call, the check wants that refusal.
 */
public final class AllOfAdmin {
  private static final String TOPIC = "admin";
  private static final TopicPartition FIRST = new TopicPartition(TOPIC, 0);
  private static final TopicPartition SECOND = new TopicPartition(TOPIC, 1);
  private static final ConfigResource CONFIGS = new ConfigResource(ConfigResource.Type.TOPIC, TOPIC);

  private final Map<String, Callable<?>> checks = new LinkedHashMap<>();
  private final String bootstrap;
  private final Admin admin;

  private AllOfAdmin(String bootstrap) {
    this.bootstrap = bootstrap;
    admin = Admin.create(Map.of("bootstrap.servers", bootstrap, "request.timeout.ms", 20_000, "default.api.timeout.ms", 20_000, "enable.metrics.push", true));
  }

  public static void main(String[] arguments) {
    new AllOfAdmin(arguments[0]).run();
    System.exit(0);
  }

  private void run() {
    topics();
    configs();
    logs();
    groups();
    shareGroups();
    streamsGroups();
    transactions();
    cluster();
    security();
    ofTheClient();
    checks.forEach((name, check) -> System.out.println(name + "\t" + outcome(check)));
    Set<String> untried = new TreeSet<>();
    Arrays.stream(Admin.class.getMethods()).forEach(method -> untried.add(method.getName()));
    untried.removeAll(checks.keySet());
    untried.removeAll(Set.of("create")); // how this one came about
    untried.forEach(name -> System.out.println(name + "\tno check tries it"));
  }

  private static String outcome(Callable<?> check) {
    try {
      Object wrong = check.call();
      return wrong == null ? "passed" : "not as wanted: " + wrong;
    } catch (Exception | AssertionError error) {
      return String.valueOf(error).replaceAll("\\s+", " ");
    }
  }

  /** Null where it is as wanted: else what was found. */
  private static Object is(Object found, Object wanted) {
    return wanted.equals(found) ? null : found;
  }

  private static Object holds(boolean fact, Object found) {
    return fact ? null : found;
  }

  /** Null where it is refused with one of these: else what became of it. */
  private static Object refused(KafkaFuture<?> future, String... names) throws Exception {
    try {
      return "no refusal: " + future.get();
    } catch (ExecutionException error) {
      String name = error.getCause().getClass().getSimpleName();
      return List.of(names).contains(name) ? null : error.getCause();
    }
  }

  /** Ask again until it holds, since a broker may answer before it has done what it was told. */
  private static Object until(Callable<Object> check) throws Exception {
    long end = System.nanoTime() + Duration.ofSeconds(15).toNanos();
    while (true) {
      Object wrong;
      try {
        wrong = check.call();
      } catch (ExecutionException error) {
        wrong = error;
      }
      if (wrong == null || System.nanoTime() > end) return wrong;
      Thread.sleep(100);
    }
  }

  private void produce(int partition, int count) throws Exception {
    try (KafkaProducer<String, String> producer = new KafkaProducer<>(client(), new StringSerializer(), new StringSerializer())) {
      for (int number = 0; number < count; number++) producer.send(new ProducerRecord<>(TOPIC, partition, "k", "v")).get();
    }
  }

  private Properties client() {
    Properties properties = new Properties();
    properties.put("bootstrap.servers", bootstrap);
    return properties;
  }

  private void topics() {
    checks.put("createTopics", () -> {
      admin.createTopics(List.of(new NewTopic(TOPIC, 1, (short) 1), new NewTopic("gone", 1, (short) 1))).all().get();
      return refused(admin.createTopics(List.of(new NewTopic(TOPIC, 1, (short) 1))).all(), "TopicExistsException");
    });
    checks.put("listTopics", () -> until(() -> holds(admin.listTopics().names().get().containsAll(Set.of(TOPIC, "gone")), "not listed")));
    checks.put("describeTopics", () -> {
      Uuid id = admin.describeTopics(List.of(TOPIC)).allTopicNames().get().get(TOPIC).topicId();
      TopicCollection byId = TopicCollection.ofTopicIds(List.of(id));
      return is(admin.describeTopics(byId).allTopicIds().get().get(id).name(), TOPIC);
    });
    checks.put("createPartitions", () -> {
      admin.createPartitions(Map.of(TOPIC, NewPartitions.increaseTo(2))).all().get();
      return until(() -> is(admin.describeTopics(List.of(TOPIC)).allTopicNames().get().get(TOPIC).partitions().size(), 2));
    });
    checks.put("deleteTopics", () -> {
      admin.deleteTopics(List.of("gone")).all().get();
      return until(() -> holds(!admin.listTopics().names().get().contains("gone"), "still listed"));
    });
  }

  @SuppressWarnings("removal")
  private void configs() {
    checks.put("incrementalAlterConfigs", () -> {
      AlterConfigOp change = new AlterConfigOp(new ConfigEntry("retention.ms", "7000"), AlterConfigOp.OpType.SET);
      admin.incrementalAlterConfigs(Map.of(CONFIGS, List.of(change))).all().get();
      ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
      ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, "configured");
      AlterConfigOp ofBroker = new AlterConfigOp(new ConfigEntry("log.retention.ms", "9000000"), AlterConfigOp.OpType.SET);
      AlterConfigOp ofGroup = new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
      admin.incrementalAlterConfigs(Map.of(broker, List.of(ofBroker), group, List.of(ofGroup))).all().get();
      return null;
    });
    checks.put("describeConfigs", () -> until(() -> is(admin.describeConfigs(List.of(CONFIGS)).all().get().get(CONFIGS).get("retention.ms").value(), "7000")));
    checks.put("listConfigResources", () -> until(() -> holds(admin.listConfigResources(Set.of(ConfigResource.Type.TOPIC), new org.apache.kafka.clients.admin.ListConfigResourcesOptions()).all().get().contains(CONFIGS), "not listed")));
    checks.put("listClientMetricsResources", () -> is(admin.listClientMetricsResources().all().get().size(), 0));
  }

  private void logs() {
    checks.put("listOffsets", () -> {
      produce(0, 5);
      produce(1, 3);
      return is(admin.listOffsets(Map.of(FIRST, OffsetSpec.latest())).all().get().get(FIRST).offset(), 5L);
    });
    checks.put("deleteRecords", () -> is(admin.deleteRecords(Map.of(FIRST, RecordsToDelete.beforeOffset(2))).lowWatermarks().get(FIRST).get().lowWatermark(), 2L));
    checks.put("describeLogDirs", () -> holds(admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1).values().stream().anyMatch(dir -> dir.replicaInfos().containsKey(FIRST)), "no such partition"));
    checks.put("describeReplicaLogDirs", () -> {
      TopicPartitionReplica replica = new TopicPartitionReplica(TOPIC, 0, 1);
      return holds(admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica).getCurrentReplicaLogDir() != null, "no folder");
    });
    checks.put("alterReplicaLogDirs", () -> refused(admin.alterReplicaLogDirs(Map.of(new TopicPartitionReplica(TOPIC, 0, 1), "/nowhere")).all(), "LogDirNotFoundException"));
    checks.put("describeProducers", () -> holds(admin.describeProducers(List.of(FIRST)).all().get().get(FIRST).activeProducers().size() == 1, "not one producer"));
  }

  private void groups() {
    checks.put("alterConsumerGroupOffsets", () -> {
      Map<TopicPartition, OffsetAndMetadata> offsets = Map.of(FIRST, new OffsetAndMetadata(3, "m"), SECOND, new OffsetAndMetadata(1));
      return until(() -> {
        admin.alterConsumerGroupOffsets("readers", offsets).all().get();
        return null;
      });
    });
    checks.put("listConsumerGroupOffsets", () -> {
      Map<String, ListConsumerGroupOffsetsSpec> wanted = Map.of("readers", new ListConsumerGroupOffsetsSpec());
      return is(admin.listConsumerGroupOffsets(wanted).all().get().get("readers").get(FIRST), new OffsetAndMetadata(3, Optional.empty(), "m"));
    });
    checks.put("deleteConsumerGroupOffsets", () -> {
      admin.deleteConsumerGroupOffsets("readers", Set.of(SECOND)).all().get();
      return is(admin.listConsumerGroupOffsets("readers").partitionsToOffsetAndMetadata().get().keySet(), Set.of(FIRST));
    });
    checks.put("listGroups", () -> holds(admin.listGroups().all().get().stream().anyMatch(group -> group.groupId().equals("readers")), "not listed"));
    checks.put("listConsumerGroups", () -> holds(listed("readers"), "not listed"));
    checks.put("describeConsumerGroups", () -> withMember("consumer", () -> is(admin.describeConsumerGroups(List.of("consumer")).all().get().get("consumer").members().size(), 1)));
    checks.put("describeClassicGroups", () -> withMember("classic", () -> is(admin.describeClassicGroups(List.of("classic")).all().get().get("classic").members().size(), 1)));
    checks.put("removeMembersFromConsumerGroup", () -> withMember("classic", () -> {
      admin.removeMembersFromConsumerGroup("classic", new RemoveMembersFromConsumerGroupOptions()).all().get();
      return is(admin.describeConsumerGroups(List.of("classic")).all().get().get("classic").members().size(), 0);
    }));
    checks.put("deleteConsumerGroups", () -> {
      admin.deleteConsumerGroups(List.of("readers")).all().get();
      return refused(admin.deleteConsumerGroups(List.of("readers")).all(), "GroupIdNotFoundException");
    });
  }

  @SuppressWarnings("removal")
  private boolean listed(String group) throws Exception {
    return admin.listConsumerGroups().all().get().stream().anyMatch(one -> one.groupId().equals(group));
  }

  /** With a member of the group of this protocol's name, which has its partitions. */
  private Object withMember(String protocol, Callable<Object> check) throws Exception {
    Properties properties = client();
    properties.put("group.id", protocol);
    properties.put("group.protocol", protocol);
    try (KafkaConsumer<String, String> member = new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
      member.subscribe(List.of(TOPIC));
      long end = System.nanoTime() + Duration.ofSeconds(30).toNanos();
      while (member.assignment().isEmpty() && System.nanoTime() < end) member.poll(Duration.ofMillis(100));
      return check.call();
    }
  }

  private void shareGroups() {
    checks.put("alterShareGroupOffsets", () -> until(() -> {
      admin.alterShareGroupOffsets("sharers", Map.of(FIRST, 3L)).all().get();
      return null;
    }));
    checks.put("listShareGroupOffsets", () -> until(() -> is(admin.listShareGroupOffsets(Map.of("sharers", new ListShareGroupOffsetsSpec())).all().get().get("sharers").get(FIRST).startOffset(), 3L)));
    checks.put("describeShareGroups", () -> is(admin.describeShareGroups(List.of("sharers")).all().get().get("sharers").groupState().toString(), "Empty"));
    checks.put("deleteShareGroupOffsets", () -> {
      admin.deleteShareGroupOffsets("sharers", Set.of(TOPIC)).all().get();
      return is(admin.listShareGroupOffsets(Map.of("sharers", new ListShareGroupOffsetsSpec())).all().get().get("sharers").size(), 0);
    });
    checks.put("deleteShareGroups", () -> {
      admin.deleteShareGroups(List.of("sharers")).all().get();
      return refused(admin.deleteShareGroups(List.of("sharers")).all(), "GroupIdNotFoundException");
    });
  }

  private void streamsGroups() {
    checks.put("alterStreamsGroupOffsets", () -> {
      admin.alterStreamsGroupOffsets("streamers", Map.of(FIRST, new OffsetAndMetadata(2), SECOND, new OffsetAndMetadata(1))).all().get();
      return null;
    });
    checks.put("listStreamsGroupOffsets", () -> is(admin.listStreamsGroupOffsets(Map.of("streamers", new ListStreamsGroupOffsetsSpec())).all().get().get("streamers").get(FIRST).offset(), 2L));
    checks.put("describeStreamsGroups", () -> refused(admin.describeStreamsGroups(List.of("streamers")).all(), "GroupIdNotFoundException"));
    checks.put("deleteStreamsGroupOffsets", () -> {
      admin.deleteStreamsGroupOffsets("streamers", Set.of(SECOND)).all().get();
      return null;
    });
    checks.put("deleteStreamsGroups", () -> {
      admin.deleteStreamsGroups(List.of("streamers")).all().get();
      return refused(admin.deleteStreamsGroups(List.of("streamers")).all(), "GroupIdNotFoundException");
    });
  }

  private void transactions() {
    checks.put("fenceProducers", () -> {
      Properties properties = client();
      properties.put("transactional.id", "fenced");
      try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
        producer.initTransactions();
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(TOPIC, 1, "k", "v")).get();
        admin.fenceProducers(List.of("fenced")).all().get();
        try {
          producer.commitTransaction();
          return "it committed";
        } catch (org.apache.kafka.common.KafkaException error) {
          return null;
        }
      }
    });
    checks.put("describeTransactions", () -> holds(admin.describeTransactions(List.of("fenced")).all().get().get("fenced").producerId() >= 0, "no producer"));
    checks.put("listTransactions", () -> holds(admin.listTransactions().all().get().stream().anyMatch(one -> one.transactionalId().equals("fenced")), "not listed"));
    checks.put("forceTerminateTransaction", () -> {
      admin.forceTerminateTransaction("fenced").result().get();
      return null;
    });
    checks.put("abortTransaction", () -> {
      admin.abortTransaction(new AbortTransactionSpec(FIRST, 987_654_321L, (short) 0, 0)).all().get();
      return null; // of a producer that nobody knows
    });
  }

  private void cluster() {
    checks.put("describeCluster", () -> is(admin.describeCluster().nodes().get().size(), 1));
    checks.put("describeFeatures", () -> holds(admin.describeFeatures().featureMetadata().get().finalizedFeatures().containsKey("share.version"), "no share.version"));
    checks.put("updateFeatures", () -> {
      Map<String, FeatureUpdate> update = Map.of("transaction.version", new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.SAFE_DOWNGRADE));
      admin.updateFeatures(update, new UpdateFeaturesOptions().validateOnly(true)).all().get();
      return null;
    });
    checks.put("describeMetadataQuorum", () -> is(admin.describeMetadataQuorum().quorumInfo().get().voters().size(), 1));
    checks.put("electLeaders", () -> refused(admin.electLeaders(ElectionType.PREFERRED, Set.of(FIRST)).partitions().get().get(FIRST).map(AllOfAdmin::failed).orElseThrow(), "ElectionNotNeededException"));
    checks.put("alterPartitionReassignments", () -> refused(admin.alterPartitionReassignments(Map.of(FIRST, Optional.empty())).all(), "NoReassignmentInProgressException"));
    checks.put("listPartitionReassignments", () -> is(admin.listPartitionReassignments().reassignments().get().size(), 0));
    checks.put("addRaftVoter", () -> refused(admin.addRaftVoter(7, Uuid.randomUuid(), Set.of(new RaftVoterEndpoint("CONTROLLER", "127.0.0.1", 7))).all(), "UnsupportedVersionException"));
    checks.put("removeRaftVoter", () -> refused(admin.removeRaftVoter(7, Uuid.randomUuid()).all(), "UnsupportedVersionException"));
    checks.put("unregisterBroker", () -> refused(admin.unregisterBroker(77).all(), "BrokerIdNotRegisteredException"));
    checks.put("unregisterController", () -> {
      try {
        Object result = Admin.class.getMethod("unregisterController", int.class).invoke(admin, 77);
        return refused((KafkaFuture<?>) result.getClass().getMethod("all").invoke(result), "ControllerIdNotRegisteredException");
      } catch (NoSuchMethodException error) {
        return null; // since 4.4
      }
    });
  }

  private static KafkaFuture<?> failed(Throwable error) {
    org.apache.kafka.common.internals.KafkaFutureImpl<Object> future = new org.apache.kafka.common.internals.KafkaFutureImpl<>();
    future.completeExceptionally(error);
    return future;
  }

  private void security() {
    AclBinding binding = new AclBinding(new ResourcePattern(ResourceType.TOPIC, TOPIC, PatternType.LITERAL), new AccessControlEntry("User:a", "*", AclOperation.READ, AclPermissionType.ALLOW));
    checks.put("createAcls", () -> refused(admin.createAcls(List.of(binding)).all(), "SecurityDisabledException"));
    checks.put("describeAcls", () -> refused(admin.describeAcls(AclBindingFilter.ANY).values(), "SecurityDisabledException"));
    checks.put("deleteAcls", () -> refused(admin.deleteAcls(List.of(AclBindingFilter.ANY)).all(), "SecurityDisabledException"));
    ClientQuotaEntity user = new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, "a"));
    checks.put("alterClientQuotas", () -> {
      admin.alterClientQuotas(List.of(new ClientQuotaAlteration(user, List.of(new ClientQuotaAlteration.Op("producer_byte_rate", 9e9))))).all().get();
      return null;
    });
    checks.put("describeClientQuotas", () -> until(() -> is(admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().keySet(), Set.of(user))));
    byte[] salt = "salt of 16 bytes".getBytes(StandardCharsets.UTF_8);
    ScramCredentialInfo about = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192);
    checks.put("alterUserScramCredentials", () -> {
      admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion("a", about, "secret".getBytes(StandardCharsets.UTF_8), salt))).all().get();
      return null;
    });
    checks.put("describeUserScramCredentials", () -> until(() -> is(admin.describeUserScramCredentials().users().get(), List.of("a"))));
    Collection<String> disabled = new ArrayList<>(List.of("DelegationTokenDisabledException", "UnsupportedByAuthenticationException"));
    String[] tokens = disabled.toArray(String[]::new);
    checks.put("createDelegationToken", () -> refused(admin.createDelegationToken().delegationToken(), tokens));
    checks.put("renewDelegationToken", () -> refused(admin.renewDelegationToken(salt).expiryTimestamp(), tokens));
    checks.put("expireDelegationToken", () -> refused(admin.expireDelegationToken(salt).expiryTimestamp(), tokens));
    checks.put("describeDelegationToken", () -> refused(admin.describeDelegationToken().delegationTokens(), tokens));
  }

  private void ofTheClient() {
    checks.put("metrics", () -> holds(!admin.metrics().isEmpty(), "none"));
    checks.put("registerMetricForSubscription", () -> {
      admin.registerMetricForSubscription((org.apache.kafka.common.metrics.KafkaMetric) admin.metrics().values().iterator().next());
      return null;
    });
    checks.put("unregisterMetricFromSubscription", () -> {
      admin.unregisterMetricFromSubscription((org.apache.kafka.common.metrics.KafkaMetric) admin.metrics().values().iterator().next());
      return null;
    });
    checks.put("clientInstanceId", () -> {
      try {
        return admin.clientInstanceId(Duration.ofMillis(500)); // no broker here takes metrics
      } catch (org.apache.kafka.common.KafkaException error) {
        return null;
      }
    });
    checks.put("close", () -> {
      admin.close(Duration.ofSeconds(10));
      return null;
    });
  }
}
