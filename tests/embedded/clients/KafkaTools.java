import java.io.*;
import java.util.*;
import org.apache.kafka.common.utils.Exit;

/** Runs Kafka's own command line programs one after the other: a line of standard input is a class and its arguments,
 *  with tabs between them. Prints what each prints, and its exit code. */
public class KafkaTools {
    static class Ended extends RuntimeException {
        Ended() {
            super(null, null, false, false);
        }
    }

    /** The exit code of the program that runs, null until it ends: some catch what ends them, and end once more. */
    static Integer code;

    static void end(int told) {
        if (code == null) {
            code = told;
            System.setOut(new PrintStream(OutputStream.nullOutputStream()));
            System.setErr(new PrintStream(OutputStream.nullOutputStream()));
        }
        throw new Ended();
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        Exit.setExitProcedure((told, message) -> end(told));
        Exit.setHaltProcedure((told, message) -> end(told));
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            String[] words = line.split("\t", -1);
            var written = new ByteArrayOutputStream();
            var both = new PrintStream(written, true);
            System.setOut(both);
            System.setErr(both);
            code = null;
            run(words[0], Arrays.copyOfRange(words, 1, words.length));
            System.setOut(both);
            end();
            both.flush();
            out.println("== " + line);
            out.print(written);
            out.println("-- " + (code == null ? 0 : code));
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    /** Does what a program has left for the end of its JVM. */
    static void end() throws Exception {
        var hooks = Class.forName("java.lang.ApplicationShutdownHooks").getDeclaredField("hooks");
        hooks.setAccessible(true);
        for (Object each : ((Map<?, ?>) hooks.get(null)).keySet().toArray())
            if (each instanceof Thread hook && hook.getName().startsWith("verifiable")) {
                Runtime.getRuntime().removeShutdownHook(hook);
                hook.run();
            }
    }

    static void run(String name, String[] arguments) {
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (java.lang.reflect.InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Ended)) System.out.println("thrown: " + thrown.getCause());
        } catch (ReflectiveOperationException missing) {
            System.out.println(missing);
        }
    }
}
