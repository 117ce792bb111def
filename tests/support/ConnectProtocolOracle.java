import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.connect.runtime.distributed.ConnectProtocol;
import org.apache.kafka.connect.runtime.distributed.ExtendedAssignment;
import org.apache.kafka.connect.runtime.distributed.ExtendedWorkerState;
import org.apache.kafka.connect.runtime.distributed.IncrementalCooperativeConnectProtocol;

/**
 * Decodes and encodes messages of the Connect group protocol with Kafka Connect's classes. Each line of standard input
 * contains "metadata" or "assignment", the version (0, 1 or 2) and the message in hexadecimal. The result is one line:
 * the message as Kafka Connect encodes it, and the decoded fields, separated by a tab.
 */
public class ConnectProtocolOracle {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] columns = line.split(" ");
            int version = Integer.parseInt(columns[1]);
            ByteBuffer message = ByteBuffer.wrap(HexFormat.of().parseHex(columns[2]));
            System.out.println(columns[0].equals("metadata") ? metadata(message, version) : assignment(message, version));
        }
    }

    private static String metadata(ByteBuffer message, int version) {
        if (version == 0) {
            ConnectProtocol.WorkerState state = ConnectProtocol.deserializeMetadata(message);
            return hex(ConnectProtocol.serializeMetadata(state)) + "\t" + state.url() + " " + state.offset();
        }
        ExtendedWorkerState state = IncrementalCooperativeConnectProtocol.deserializeMetadata(message);
        ExtendedAssignment held = state.assignment();
        return hex(IncrementalCooperativeConnectProtocol.serializeMetadata(state, version == 2))
            + "\t" + state.url() + " " + state.offset() + " " + held.connectors().size() + " " + held.tasks().size();
    }

    private static String assignment(ByteBuffer message, int version) {
        if (version == 0) {
            ConnectProtocol.Assignment found = ConnectProtocol.deserializeAssignment(message);
            return hex(ConnectProtocol.serializeAssignment(found)) + "\t" + common(found);
        }
        ExtendedAssignment found = IncrementalCooperativeConnectProtocol.deserializeAssignment(message);
        return hex(IncrementalCooperativeConnectProtocol.serializeAssignment(found, version == 2)) + "\t" + common(found)
            + " " + found.revokedConnectors().size() + " " + found.revokedTasks().size() + " " + found.delay();
    }

    private static String common(ConnectProtocol.Assignment found) {
        return found.error() + " " + found.leader() + " " + found.leaderUrl() + " " + found.offset() + " "
            + found.connectors().size() + " " + found.tasks().size();
    }

    private static String hex(ByteBuffer message) {
        byte[] bytes = new byte[message.remaining()];
        message.get(bytes);
        return HexFormat.of().formatHex(bytes);
    }
}
