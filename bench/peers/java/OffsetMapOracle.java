package io.confluent.parallelconsumer.offsets;

import io.confluent.parallelconsumer.offsets.OffsetMapCodecManager.HighestOffsetAndIncompletes;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.SortedSet;
import java.util.TreeSet;

/**
 * The JVM Parallel Consumer's own encoders and decoders, asked line by line; in its package because they are private to
 * it. "-" stands for nothing; runs of incomplete offsets are written FIRST-LAST,FIRST-LAST,...
 *
 * <pre>
 * decode BASE METADATA        ->  ok HIGHEST RUNS
 * encode BASE HIGHEST RUNS    ->  ok smallest=METADATA BitSet=METADATA ... (those encodings that can carry the map)
 * anything that it refuses    ->  error WHY
 * </pre>
 */
final class OffsetMapOracle {
  private OffsetMapOracle() {}

  public static void main(String[] arguments) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    PrintStream out = new PrintStream(System.out, false, "US-ASCII");
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      out.println(answer(line.split(" ")));
      out.flush();
    }
  }

  private static String answer(String[] words) {
    try {
      return switch (words[0]) {
        case "decode" -> decode(Long.parseLong(words[1]), words[2]);
        case "encode" -> encode(Long.parseLong(words[1]), Long.parseLong(words[2]), offsets(words[3]));
        default -> throw new IllegalArgumentException("no such question: " + words[0]);
      };
    } catch (Exception refused) {
      return "error " + String.valueOf(refused).replace('\n', ' ');
    }
  }

  private static String decode(long base, String metadata) {
    byte[] bytes = OffsetSimpleSerialisation.decodeBase64(metadata.equals("-") ? "" : metadata);
    HighestOffsetAndIncompletes state = OffsetMapCodecManager.decodeCompressedOffsets(base, bytes);
    return "ok " + state.getHighestSeenOffset().orElseThrow() + " " + runs(state.getIncompleteOffsets());
  }

  private static String encode(long base, long highest, SortedSet<Long> incomplete) throws NoEncodingPossibleException {
    StringBuilder answer = new StringBuilder("ok smallest=");
    answer.append(OffsetSimpleSerialisation.base64(encoder(base, highest, incomplete, false).packSmallest()));
    OffsetSimultaneousEncoder encoder = encoder(base, highest, incomplete, true);
    for (Map.Entry<OffsetEncoding, byte[]> body : encoder.getEncodingMap().entrySet()) {
      byte[] packed = encoder.packEncoding(new EncodedOffsetPair(body.getKey(), ByteBuffer.wrap(body.getValue())));
      answer.append(' ').append(body.getKey().name()).append('=').append(OffsetSimpleSerialisation.base64(packed));
    }
    return answer.toString();
  }

  /** It compresses a body only when that is large; to see every encoding, that is forced. */
  private static OffsetSimultaneousEncoder encoder(
      long base, long highest, SortedSet<Long> incomplete, boolean compressionForced) {
    OffsetSimultaneousEncoder.compressionForced = compressionForced;
    return new OffsetSimultaneousEncoder(base, highest, incomplete).invoke();
  }

  private static SortedSet<Long> offsets(String runs) {
    SortedSet<Long> offsets = new TreeSet<>();
    if (runs.equals("-")) return offsets;
    for (String run : runs.split(",")) {
      int dash = run.indexOf('-');
      long last = Long.parseLong(run.substring(dash + 1));
      for (long offset = Long.parseLong(run.substring(0, dash)); offset <= last; offset++) offsets.add(offset);
    }
    return offsets;
  }

  private static String runs(SortedSet<Long> offsets) {
    StringBuilder runs = new StringBuilder();
    Long first = null;
    Long last = null;
    for (Long offset : offsets) {
      if (last != null && offset != last + 1) {
        runs.append(first).append('-').append(last).append(',');
        first = offset;
      }
      first = first == null ? offset : first;
      last = offset;
    }
    return last == null ? "-" : runs.append(first).append('-').append(last).toString();
  }
}
